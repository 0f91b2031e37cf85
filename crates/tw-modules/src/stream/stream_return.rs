//! `return` of `stream`: sends a text and closes (nginx: ngx_stream_return_module). Content phase.

use std::sync::Arc;
use std::time::Duration;

use tw_base::{Errno, Limit};
use tw_conf::{Args, ConfError, Directive, STREAM_SERVER, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_log::Level;
use tw_stream::Stream;
use tw_stream::plan::{ContentHandler, LocalFuture, Plan};
use tw_stream::session::{SendFailure, SessionStatus, StreamSession};
use tw_stream::session_filter::{self, FilteredSendFailure};

/// `return` as written.
#[derive(Default)]
pub(crate) struct Raw {
    text: Setting<Word>,
}

/// `return` of a server; not inherited.
pub(crate) struct StreamReturn {
    text: Option<Template<StreamSession>>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Time for which a client may take nothing of the text of `return`.
    const SEND_TIMEOUT: Duration = Duration::from_secs(5), time, "the session ends";
}

impl Settings<Stream> for StreamReturn {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("return", "value", STREAM_SERVER, Args::exact(1))
            .since("1.11.2")
            .doc("Sends this text to the client and closes the connection.")
            .set(|raw, node, _| raw.text.set_once(node, node.arg(0)?.clone()))];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        Ok(Self { text: raw.text.take().map(|word| cx.template(&word)).transpose()? })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.text.is_some() {
            plan.set_content(self.clone());
        }
    }
}

impl ContentHandler for StreamReturn {
    fn serve<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, SessionStatus> {
        Box::pin(async move {
            let text = self.text.as_ref().map_or_else(Vec::new, |text| text.value(s));
            match session_filter::send(s, text, SEND_TIMEOUT).await {
                Ok(()) => SessionStatus::OK,
                Err(FilteredSendFailure::Filter(status)) => status,
                Err(FilteredSendFailure::Send(SendFailure::Timeout)) => {
                    let message = "connection timed out (110: Connection timed out) while returning text";
                    s.log(Level::Info, format_args!("{message}"));
                    SessionStatus::OK
                }
                Err(FilteredSendFailure::Send(SendFailure::Broken(error))) => {
                    let errno = Errno(error.raw_os_error().unwrap_or_default());
                    s.log(Level::Info, format_args!("send() failed ({errno}) while returning text"));
                    SessionStatus::INTERNAL_SERVER_ERROR
                }
            }
        })
    }
}
