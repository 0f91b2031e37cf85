//! End of a stream: behind its response, or in the place of one.

use std::task::{Context, Waker};

use super::{Progress, RequestStream, ResetReason};

/// Status of a request that did not arrive in time.
const REQUEST_TIMEOUT: u16 = 408;

/// Way in which a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Both sides have ended it.
    Regular,
    Reset(ResetReason),
    /// The message of the client is malformed, and the response perhaps cut.
    Malformed(Option<ResetReason>),
}

/// Refuses the request, of which nothing was done.
pub(super) fn refuse<S: RequestStream>(stream: &S) {
    stream.cost().count_end(false);
    stream.forget();
    if stream.state().set_progress(Progress::Over) != Progress::Over {
        stream.reset(ResetReason::Refused);
    }
}

/// Ends the stream of a request that was answered with `status`: a response that is not complete is cut.
pub(super) fn end<S: RequestStream>(stream: &S, is_complete: bool, status: u16) {
    let is_gone = stream.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
    stream.cost().count_end(!is_complete && is_gone);
    stream.forget();
    let before = stream.state().set_progress(Progress::Over);
    if is_gone {
        return;
    }
    match ending(before, stream.is_malformed(), is_complete, status) {
        Ending::Regular => {}
        Ending::Reset(reason) => stream.reset(reason),
        Ending::Malformed(cut) => stream.end_malformed(cut),
    }
}

/// `before` is the progress of the response until now.
fn ending(before: Progress, is_malformed: bool, is_complete: bool, status: u16) -> Ending {
    let reason = if status == REQUEST_TIMEOUT { ResetReason::TooSlow } else { ResetReason::Incomplete };
    let cut = (!is_complete && before != Progress::Over).then_some(reason);
    match cut {
        _ if is_malformed => Ending::Malformed(cut),
        Some(reason) => Ending::Reset(reason),
        None => Ending::Regular,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_reset_unless_its_response_is_complete() {
        use Progress::{Body, Head, Over};
        use ResetReason::{Incomplete, TooSlow};
        for (before, is_malformed, is_complete, status, expected) in [
            (Body, false, true, 200, Ending::Regular),
            (Over, false, true, 200, Ending::Regular),
            (Head, false, false, 500, Ending::Reset(Incomplete)),
            (Body, false, false, 200, Ending::Reset(Incomplete)),
            (Head, false, false, 408, Ending::Reset(TooSlow)),
            // The transport has the end of the response already.
            (Over, false, false, 200, Ending::Regular),
            (Body, true, true, 400, Ending::Malformed(None)),
            (Body, true, false, 400, Ending::Malformed(Some(Incomplete))),
            (Over, true, false, 400, Ending::Malformed(None)),
        ] {
            assert_eq!(ending(before, is_malformed, is_complete, status), expected, "{before:?} {status}");
        }
    }
}
