//! TCP settings of connections: the MSS follows from the address family and the MTU of the route.

use core::net::IpAddr;
use std::sync::Arc;

use crate::device::Capabilities;
use crate::tcp;
use crate::wire::tcp::{IPV4_LEN, IPV6_LEN, TCP_LEN};

/// Settings for IPv4 and for IPv6.
type ByFamily = [Arc<tcp::Config>; 2];

/// TCP settings of an engine's connections. They share them: a connection has a pointer.
pub(crate) struct TcpConfigs {
    /// Of routes with the port's MTU.
    of_port: ByFamily,
    /// Of connections within this host.
    of_hairpin: ByFamily,
    /// Of routes with this MTU.
    of_routes: Vec<(u16, ByFamily)>,
    /// Of the last connection with times of its own.
    latest_own: Option<Arc<tcp::Config>>,
}

impl TcpConfigs {
    /// Creates the settings for a port with these capabilities, and for the MTUs of routes.
    pub(crate) fn new(
        config: &tcp::Config,
        capabilities: &Capabilities,
        route_mtus: impl Iterator<Item = u16>,
    ) -> Self {
        let &Capabilities { mtu, send_mtu, hairpin_mtu, .. } = capabilities;
        let with_mtus = |mtu: u16, send_mtu: u16| {
            [IPV4_LEN, IPV6_LEN].map(|ip_len| {
                let [mss, send_mss] = [mtu, send_mtu].map(|mtu| {
                    let mss = usize::from(mtu).saturating_sub(ip_len + TCP_LEN);
                    u16::try_from(mss).unwrap_or(u16::MAX)
                });
                Arc::new(tcp::Config { mss, send_mss, ..config.clone() })
            })
        };
        let mut of_routes: Vec<(u16, ByFamily)> = Vec::new();
        for route in route_mtus {
            if of_routes.iter().all(|&(known, _)| known != route) {
                of_routes.push((route, with_mtus(mtu.min(route), send_mtu.min(route))));
            }
        }
        Self {
            of_port: with_mtus(mtu, send_mtu),
            of_hairpin: with_mtus(hairpin_mtu, hairpin_mtu),
            of_routes,
            latest_own: None,
        }
    }

    /// Returns settings that are those of a route, but for keepalive and user timeout. Connections
    /// that follow each other with the same times share them, as most programs have one set of
    /// times. Where sets alternate, each connection has its own copy, less than 300 bytes beside
    /// the 900 of the connection itself. A table of all sets in use is not worth that.
    pub(crate) fn share(&mut self, own: tcp::Config) -> Arc<tcp::Config> {
        let known = self.latest_own.take().filter(|latest| latest.is_like(&own));
        Arc::clone(self.latest_own.insert(known.unwrap_or_else(|| Arc::new(own))))
    }

    /// Returns the settings of a connection within this host.
    pub(crate) fn of_hairpin(&self, remote: IpAddr) -> &Arc<tcp::Config> {
        select(&self.of_hairpin, remote)
    }

    /// Returns the settings of a connection to another host. `route_mtu`: the MTU of its route, if
    /// that has one; not called if no route has.
    pub(crate) fn of_route(
        &self,
        remote: IpAddr,
        route_mtu: impl FnOnce() -> Option<u16>,
    ) -> &Arc<tcp::Config> {
        let mtu = if self.of_routes.is_empty() { None } else { route_mtu() };
        let of_route = mtu.and_then(|mtu| self.of_routes.iter().find(|(of, _)| *of == mtu));
        select(of_route.map_or(&self.of_port, |(_, configs)| configs), remote)
    }
}

fn select(configs: &ByFamily, remote: IpAddr) -> &Arc<tcp::Config> {
    &configs[usize::from(remote.is_ipv6())]
}
