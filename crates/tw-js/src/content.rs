//! `js_content`: a function answers. Content phase.
//!
//! ```text
//! body of the request ─► call ─┬─ r.return() ───────────► response; a call that goes on does so behind it
//!                              ├─ r.sendHeader() ───────► head; pieces of r.send() are pulled, until r.finish()
//!                              └─ r.internalRedirect() ─► another location, once the call has ended
//! ```

use bytes::Bytes;
use tw_http::target;
use tw_log::{Level, Text};
use tw_phases::phases;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::request::Request;
use tw_request::request_body;
use tw_script::{ByteBuf, CallKind, Effect};

use crate::after_response;
use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::sent_body::SentBody;
use crate::snapshot;

/// Answers by a function.
pub(crate) struct ContentHandler(pub(crate) ScriptFunction);

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
                    let body = SentBody::new(call, r.response.content_length.take());
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
