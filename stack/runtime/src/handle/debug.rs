//! `Debug` of handles: name and state, without a call to the shard.

use std::fmt;

use crate::context::Context;
use crate::handle::comp_channel::CompChannel;
use crate::handle::cq::Cq;
use crate::handle::event_channel::EventChannel;
use crate::handle::listener::{ConnRequest, Listener};
use crate::handle::qp::Qp;
use crate::handle::qp::QpOptions;
use crate::handle::srq::Srq;

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.config();
        f.debug_struct("Context")
            .field("device", &format_args!("{}", config.device))
            .field("addresses", &config.addresses)
            .field("shards", &config.shards)
            .field("drive", &config.drive)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.id())
            .field("overrun", &self.overrun())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("id", &self.id())
            .field("state", &self.state())
            .field("shard", &self.shard())
            .field("send_cq", &self.send_cq().id())
            .field("recv_cq", &self.recv_cq().id())
            .field("srq", &self.srq().map(Srq::id))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for QpOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            send_cq,
            recv_cq,
            srq,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
            shard,
            event_channel,
            user_data,
        } = self;
        f.debug_struct("QpOptions")
            .field("send_cq", send_cq)
            .field("recv_cq", recv_cq)
            .field("max_send_wr", max_send_wr)
            .field("srq", srq)
            .field("max_recv_wr", max_recv_wr)
            .field("max_send_sge", max_send_sge)
            .field("max_recv_sge", max_recv_sge)
            .field("max_inline_data", max_inline_data)
            .field("shard", shard)
            .field("event_channel", event_channel)
            .field("user_data", user_data)
            .finish()
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnRequest").field("offer", self.offer()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompChannel").finish_non_exhaustive()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}
