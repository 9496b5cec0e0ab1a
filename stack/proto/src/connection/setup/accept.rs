//! Responder's side of connection setup: the MPA Request Frame, accept and reject.

use crate::connection::context::{Context, Env};
use crate::connection::phase::{AwaitDecision, Phase};
use crate::connection::setup::mpa_start::{StartParams, check_private_data, mpa_offer};
use crate::connection::{Connection, StartupTx};
use crate::mpa::startup::{self, Negotiated, StartupEvent};
use crate::time::Instant;
use crate::verbs::cm::{CmError, ConnInfo, ConnParam, ReadDepths, Start};
use crate::wire::mpa::{FrameKind, Startup};

/// Result of accepting a request.
#[must_use]
pub(crate) struct Accepted {
    params: StartParams,
    /// The connection begins in streaming mode.
    is_streaming: bool,
    /// Bytes received after the request.
    buffered: Vec<u8>,
}

impl<E: Env> Connection<E> {
    /// Parses the MPA Request Frame of a passive connection, and offers the request to the
    /// application if the backlog has a free slot. False if it waits for one.
    #[doc(alias = "MPA request")]
    pub(crate) fn process_mpa_request(&mut self, cx: &mut Context<E>) -> bool {
        let Phase::AwaitRequest { startup_rx, waiting, .. } = &mut self.phase else { return true };
        let request = match waiting.take() {
            Some(request) => *request,
            None => match Startup::parse(startup_rx, FrameKind::Request) {
                Ok(None) => return true,
                Ok(Some((request, used))) if startup::check_request(&request).is_ok() => {
                    *startup_rx = startup_rx.split_off(used);
                    request
                }
                Ok(Some(_)) | Err(_) => {
                    self.abort_startup(cx);
                    return true;
                }
            },
        };
        let has_slot = self.enter_backlog(cx);
        let Phase::AwaitRequest { startup_rx, waiting, .. } = &mut self.phase else { return true };
        if !has_slot {
            *waiting = Some(Box::new(request));
            return false;
        }
        let buffered = std::mem::take(startup_rx);
        let tuple = self.tcb.tuple();
        let offer = ConnInfo {
            peer: tuple.remote,
            local: tuple.local,
            ird: request.enhanced.map_or(0, |offered| offered.ord),
            ord: request.enhanced.map_or(0, |offered| offered.ird),
            crc: request.crc,
            markers_in: false,
            markers_out: request.markers,
            peer_to_peer: request.enhanced.is_some_and(|offered| offered.peer_to_peer),
            revision: request.revision,
            extensions: cx.config.extensions && request.revision > 0,
            private_data: request.private_data.clone(),
        };
        self.offer(cx, Some(request), buffered, offer);
        true
    }

    /// Accepts the connection request on the queue pair with slot index `qp`. The connection leaves
    /// the backlog, and is started by [`Connection::start_accepted`].
    ///
    /// # Errors
    /// [`CmError`]; the request can still be accepted or rejected.
    pub(crate) fn accept(
        &mut self,
        cx: &mut Context<E>,
        qp: u32,
        param: &ConnParam,
    ) -> Result<Accepted, CmError> {
        let Phase::AwaitDecision(decision) = &mut self.phase else { return Err(CmError::Gone) };
        param.check()?;
        let AwaitDecision { request, buffered, .. } = &mut **decision;
        let is_enhanced = request.as_ref().is_some_and(|request| request.enhanced.is_some());
        check_private_data(&param.private_data, request.is_some(), is_enhanced)?;
        let offer = mpa_offer(param);
        let params = match request {
            Some(request) => {
                let (reply, negotiated) =
                    startup::accept(request, offer, param.private_data.clone());
                self.startup_tx = Some(StartupTx::new(&reply));
                StartParams {
                    negotiated,
                    revision: request.revision,
                    private_data: request.private_data.clone(),
                    ooo_placement: param.ooo_placement,
                    startup: if negotiated.rtr_send_expected {
                        StartupEvent::AcceptWithRtr
                    } else {
                        StartupEvent::Accept
                    },
                }
            }
            None => StartParams::unframed(Negotiated::rdmac(offer), param.ooo_placement),
        };
        let is_streaming = request.is_none() && param.start == Start::Streaming;
        let buffered = std::mem::take(buffered);
        self.qp = Some(qp);
        self.half_close = param.half_close;
        cx.apply_settings(&mut self.tcb, param);
        self.leave_backlog(cx);
        self.make_ready(&mut cx.schedule);
        Ok(Accepted { params, is_streaming, buffered })
    }

    /// Starts a connection that was accepted.
    pub(crate) fn start_accepted(&mut self, cx: &mut Context<E>, now: Instant, accepted: Accepted) {
        let Accepted { params, is_streaming, buffered } = accepted;
        if is_streaming {
            self.enter_streaming(cx, buffered);
        } else {
            self.enter_full_operation(cx, now, params, &buffered);
        }
    }

    /// Rejects the connection request. The initiator receives `private_data`, and with revision 2
    /// the local read depths.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::OutOfRange`], [`CmError::PrivateDataTooLong`].
    pub(crate) fn reject(
        &mut self,
        cx: &mut Context<E>,
        now: Instant,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let Phase::AwaitDecision(decision) = &self.phase else { return Err(CmError::Gone) };
        reads.check()?;
        let request = decision.request.as_ref();
        let is_enhanced = request.is_some_and(|request| request.enhanced.is_some());
        check_private_data(private_data, request.is_some(), is_enhanced)?;
        let private_data = private_data.try_into().map_err(|_| CmError::PrivateDataTooLong)?;
        // Without startup frames only the end of the connection reports the reject.
        self.startup_tx =
            request.map(|request| StartupTx::new(&startup::reject(request, reads, private_data)));
        self.leave_backlog(cx);
        if !self.delay_fin(cx, now) {
            self.begin_close(cx, now);
        }
        Ok(())
    }
}
