//! `r.subrequest()`: requests to other locations. They run while the script runs or waits, side by side.

use std::task::{Context, Poll};

use bytes::Bytes;
use tw_http::fields::is_name;
use tw_http::{Method, target};
use tw_log::{Level, Text};
use tw_phases::background_subrequest;
use tw_phases::early_subrequest::EarlySubrequest;
use tw_phases::subrequest::ParentBody;
use tw_request::request::{Request, Uri};
use tw_script::{ByteBuf, OperationError, Reply, Subresponse, Token};

use super::answer::Answer;
use crate::snapshot;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Subrequests of one script call that run at once.
    const RUNNING_MAX: usize = 64, count, "the next one fails in the script";
    /// Finished subrequests of one script call whose variables it may read.
    const FINISHED_MAX: usize = 64, count, "variables of the oldest one are gone";
}

/// Subrequest as a script wants it.
pub(crate) struct Order {
    pub(crate) uri: ByteBuf,
    pub(crate) args: ByteBuf,
    pub(crate) method: ByteBuf,
    pub(crate) body: Option<ByteBuf>,
    pub(crate) is_detached: bool,
}

/// Subrequests of one call.
#[derive(Default)]
pub(crate) struct Subrequests {
    running: Vec<Running>,
    finished: Vec<(Token, EarlySubrequest)>,
}

/// A subrequest that runs, with its body so far.
struct Running {
    token: Token,
    part: EarlySubrequest,
    body: Vec<u8>,
}

impl Subrequests {
    /// Begins a subrequest of `r`. A detached one is answered at once.
    pub(crate) fn begin(
        &mut self,
        r: &mut Request,
        token: Token,
        order: Order,
    ) -> Result<Option<Reply>, OperationError> {
        let uri = uri_of(&order)?;
        let (method, name) = method_of(&order)?;
        let is_bodiless = order.body.is_none() && matches!(method, Method::Get | Method::Head);
        let body = order.body.map(|body| Bytes::from(body.into_vec()));
        if order.is_detached {
            background_subrequest::run(r, uri, background_subrequest::Copied::Nothing)
                .map_err(|refused| refuse(r, &refused.to_string()))?;
            return Ok(Some(Reply::Done));
        }
        if r.is_subrequest() {
            // Each subrequest is polled by its parent: a chain of them would take the stack of the loop.
            return Err(refuse(r, "subrequest can only be created for the primary request"));
        }
        if self.running.len() >= RUNNING_MAX {
            return Err(OperationError::Error(format!("more than {RUNNING_MAX} subrequests at once")));
        }
        let inherited = (!is_bodiless && body.is_none()).then(|| r.body.copy());
        let prepare = |part: &mut Request| {
            match method {
                Method::Other => {
                    part.head.set_method(&name);
                    part.state.method = None;
                }
                method => part.state.method = Some(method),
            }
            match (body, inherited) {
                (Some(body), _) => part.replace_body(Some(body)),
                (None, Some(inherited)) => part.body = inherited,
                (None, None) => part.replace_body(None),
            }
        };
        let begun = EarlySubrequest::begin_with(r, uri, ParentBody::Hidden, prepare);
        let part = begun.map_err(|refused| refuse(r, &refused.to_string()))?;
        self.running.push(Running { token, part, body: Vec::new() });
        Ok(None)
    }

    /// Lets the subrequests run. Ready with the answer to one that has ended, which is [settled](Self::settle) then.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Token, Answer)> {
        for at in 0..self.running.len() {
            let Some(running) = self.running.get_mut(at) else { break };
            if let Poll::Ready(answer) = running.poll(cx) {
                let Running { token, part, .. } = self.running.remove(at);
                self.finished.push((token, part));
                return Poll::Ready((token, answer));
            }
        }
        Poll::Pending
    }

    /// Ends the oldest of the finished subrequests, if there are too many.
    pub(crate) fn settle(&mut self, r: &mut Request) {
        while self.finished.len() > FINISHED_MAX {
            self.finished.remove(0).1.finish(r);
        }
    }

    /// Ends all finished subrequests.
    pub(crate) fn end(&mut self, r: &mut Request) {
        self.finished.drain(..).for_each(|(_, part)| part.finish(r));
    }

    /// Evaluates something of a finished subrequest.
    pub(crate) fn evaluate<T>(&self, token: Token, evaluate: impl FnOnce(&Request) -> T) -> Option<T> {
        let (_, part) = self.finished.iter().find(|(finished, _)| *finished == token)?;
        part.with_ended(evaluate)
    }
}

impl Running {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer> {
        let Poll::Ready(head) = self.part.poll_head(cx) else { return Poll::Pending };
        loop {
            match self.part.poll_piece(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(piece))) if self.body.len() + piece.len() > head.buffer_size => {
                    let size = head.buffer_size;
                    return Poll::Ready(Err(OperationError::Error(format!(
                        "too big subrequest response: more than {size} bytes"
                    ))));
                }
                Poll::Ready(Ok(Some(piece))) => self.body.extend_from_slice(&piece),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(self.reply())),
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(OperationError::Error(format!("subrequest failed: {error}"))));
                }
            }
        }
    }

    fn reply(&mut self) -> Reply {
        let body = std::mem::take(&mut self.body);
        let snapshot = self.part.with_ended(|part| {
            let head = snapshot::response_head(part, part.state.error_status.unwrap_or(part.response.status));
            snapshot::http(part, Some(head))
        });
        Reply::Subresponse(Box::new(Subresponse {
            snapshot: snapshot.unwrap_or_default(),
            body: Some(ByteBuf::from(body)),
        }))
    }
}

/// Path and arguments of a subrequest.
fn uri_of(order: &Order) -> Result<Uri, OperationError> {
    match target::local(&order.uri) {
        Ok((path, own)) if path.starts_with(b"/") => {
            let args = if order.args.is_empty() { own } else { order.args.to_vec() };
            Ok(Uri { path, args })
        }
        _ => Err(OperationError::Error(format!("unsafe uri \"{}\" in subrequest", Text(&order.uri)))),
    }
}

/// Method and its name.
fn method_of(order: &Order) -> Result<(Method, Vec<u8>), OperationError> {
    if order.method.is_empty() {
        return Ok((Method::Get, Vec::new()));
    }
    match Method::of(&order.method) {
        Method::Connect => Err(unknown_method(order)),
        Method::Other if !is_name(&order.method) => Err(unknown_method(order)),
        method => Ok((method, order.method.to_vec())),
    }
}

fn unknown_method(order: &Order) -> OperationError {
    OperationError::Error(format!("unknown method \"{}\"", Text(&order.method)))
}

/// Logs why there is no subrequest.
fn refuse(r: &Request, why: &str) -> OperationError {
    r.log(Level::Error, format_args!("js: {why} in subrequest"));
    OperationError::Error(format!("subrequest creation failed: {why}"))
}
