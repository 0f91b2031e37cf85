//! `js_content`: a function answers. Content phase.
//!
//! ```text
//! body of the request ─► call ─┬─ r.return() ───────────► response; a call that goes on does so behind it
//!                              ├─ r.sendHeader() ───────► head; pieces of r.send() are pulled, until r.finish()
//!                              └─ r.internalRedirect() ─► another location, once the call has ended
//! ```

use std::io;

use bytes::Bytes;
use tw_http::target;
use tw_log::{Level, Text};
use tw_phases::phases;
use tw_request::body::{AlreadyLogged, Body, Pull};
use tw_request::plan::{Handler, LocalFuture, Outcome, Step};
use tw_request::request::Request;
use tw_request::request_body;
use tw_script::{ByteBuf, CallKind, Effect};

use crate::after_response;
use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::snapshot;

/// Answers by a function.
pub(crate) struct ContentHandler(pub(crate) ScriptFunction);

/// Body of a response that a function sends piece by piece.
struct SentBody {
    call: RequestCall,
    /// Bytes that the head has announced and that have not been sent.
    announced: Option<u64>,
    is_finished: bool,
    is_over: bool,
}

impl Handler for ContentHandler {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(self.answer(r)))
    }
}

impl ContentHandler {
    async fn answer(&self, r: &mut Request) -> Outcome {
        if r.body.has_source()
            && let Err(status) = request_body::read::read(r).await
        {
            return Outcome::Status(status);
        }
        let wire = r.wire().clone();
        match wire.unless_gone(self.respond(r)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Failed { status })) => Outcome::Status(status),
            Err(gone) => phases::client_closed(r, &gone),
        }
    }

    async fn respond(&self, r: &mut Request) -> Result<Outcome, Failed> {
        let snapshot = snapshot::of_request(r, None);
        let mut call = RequestCall::start(r, &self.0, CallKind::Content, snapshot).await?;
        let mut response = None;
        loop {
            let has_answered = matches!(response, Some(Outcome::Respond(_))) && !r.is_subrequest();
            if has_answered
                && !call.is_ready()
                && let Some(outcome) = response.take()
            {
                // A client does not wait for work that follows its response.
                after_response::continue_later(r, call);
                return Ok(outcome);
            }
            let progress = match call.step(r).await {
                // The exception was logged, and the response that the function has made stands, as in njs, which sends it at once.
                Err(_) if response.is_some() && call.has_thrown() => Some(Progress::Done(None)),
                progress => progress?,
            };
            let Some(progress) = progress else { continue };
            match progress {
                Progress::Effect(Effect::Return { status, text }) if response.is_none() => {
                    response = Some(returned(r, status, text));
                }
                Progress::Effect(Effect::InternalRedirect { uri }) => {
                    response = Some(redirect(r, &uri));
                }
                Progress::Effect(Effect::SendHeader) if response.is_none() => {
                    let announced = r.response.content_length.take();
                    let body = SentBody { call, announced, is_finished: false, is_over: false };
                    return Ok(Outcome::Respond(Body::Pull(Box::new(body))));
                }
                // A function that has finished without a head has answered nothing.
                Progress::Effect(_) | Progress::Handled => {}
                Progress::Done(_) => {
                    return match response {
                        Some(outcome) => Ok(outcome),
                        None => {
                            let function = &self.0.name;
                            r.log(Level::Error, format_args!("js: \"{function}\" has sent no response"));
                            Err(Failed { status: 500 })
                        }
                    };
                }
            }
        }
    }
}

/// Response of `r.return()`.
pub(crate) fn returned(r: &mut Request, status: u16, text: Option<ByteBuf>) -> Outcome {
    let text = match text {
        None if status >= 400 => return Outcome::Status(status),
        text => text.map(ByteBuf::into_vec).unwrap_or_default(),
    };
    r.response.set_status(status);
    match status {
        301 | 302 | 303 | 307 | 308 => {
            if !text.is_empty() {
                r.response.location = text.into();
            }
            Outcome::Status(status)
        }
        444 => Outcome::Status(444),
        _ => {
            // The script may have set the content type.
            if r.response.content_type.is_empty() {
                let core = r.plan().core.clone();
                r.response.content_type =
                    core.types.find(target::exten(&r.uri.path)).unwrap_or(&core.default_type).clone();
            }
            Outcome::Respond(Body::Bytes(Bytes::from(text)))
        }
    }
}

/// Location of `r.internalRedirect()`.
pub(crate) fn redirect(r: &Request, uri: &[u8]) -> Outcome {
    if uri.first() == Some(&b'@') {
        return Outcome::Named(uri.into());
    }
    match target::local(uri) {
        Ok((path, args)) if path.starts_with(b"/") => Outcome::Redirect { path, args },
        _ => {
            r.log(Level::Error, format_args!("unsafe URI \"{}\" in internalRedirect()", Text(uri)));
            Outcome::Status(500)
        }
    }
}

impl SentBody {
    async fn piece(&mut self, r: &mut Request) -> Result<Option<Bytes>, Failed> {
        while !self.is_over {
            match self.call.next(r).await {
                Ok(Progress::Effect(Effect::Send { data })) if !self.is_finished && !data.is_empty() => {
                    return self.take(r, data.into_vec()).map(Some);
                }
                Ok(Progress::Effect(Effect::Finish)) => self.is_finished = true,
                Ok(Progress::Effect(_) | Progress::Handled) => {}
                Ok(Progress::Done(_)) => self.is_over = true,
                Err(failed) => {
                    self.is_over = true;
                    return Err(failed);
                }
            }
        }
        if !self.is_finished {
            r.log(Level::Error, format_args!("js: the response was not finished by r.finish()"));
            return Err(Failed { status: 500 });
        }
        match self.announced {
            None | Some(0) => Ok(None),
            Some(missing) => {
                r.log(
                    Level::Error,
                    format_args!("js: the response is {missing} bytes shorter than its Content-Length"),
                );
                Err(Failed { status: 500 })
            }
        }
    }

    /// A piece, within the announced length.
    fn take(&mut self, r: &Request, data: Vec<u8>) -> Result<Bytes, Failed> {
        if let Some(announced) = &mut self.announced {
            let Some(rest) = announced.checked_sub(data.len() as u64) else {
                self.is_over = true;
                r.log(Level::Error, format_args!("js: the response is longer than its Content-Length"));
                return Err(Failed { status: 500 });
            };
            *announced = rest;
        }
        Ok(data.into())
    }
}

impl Pull for SentBody {
    fn next<'a>(&'a mut self, _: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move { self.piece(r).await.map_err(|_| io::Error::other(AlreadyLogged)) })
    }

    fn remaining(&self) -> Option<u64> {
        if self.is_over && self.is_finished { Some(0) } else { self.announced }
    }

    fn flushes(&self) -> bool {
        true
    }
}
