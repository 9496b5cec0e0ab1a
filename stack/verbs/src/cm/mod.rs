//! librdmacm: IDs of connections and of listeners, and the channels of their events.
//!
//! | File | Part |
//! |---|---|
//! | `id` | The ID, its state, its life |
//! | `channel`, `event` | Events on their way to the program |
//! | `resolve`, `ports` | Addresses and local ports |
//! | `listen`, `connect`, `disconnect`, `time_wait` | Both ends of a connection |
//! | `queue_pair` | Queue pairs and shared receive queues of an ID |
//! | `addrinfo`, `endpoint`, `option`, `devices` | The rest of the interface |
//! | `memory` | Addresses and bytes as the program passes them |

mod addrinfo;
mod channel;
mod connect;
mod devices;
mod disconnect;
mod endpoint;
mod event;
mod id;
mod listen;
mod memory;
mod option;
mod ports;
mod queue_pair;
mod resolve;
mod time_wait;

pub(crate) use id::Id as Connection;
pub(crate) use id::on_device_removal;
pub(crate) use listen::on_connect_requests;
pub(crate) use time_wait::report_timewait_exits;
