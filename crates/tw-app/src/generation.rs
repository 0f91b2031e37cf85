//! A live configuration of all protocols.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use tw_acme::AcmeConfig;
use tw_core::config_thread::GenerationRef;
use tw_core::event_loop::LoopConfiguration;
use tw_core::generation::ProcessGeneration;
use tw_mail::config::Generation as MailGeneration;
use tw_phases::phases::explain::explain;
use tw_request::generation::Generation as HttpGeneration;
use tw_server::http::new_loop;
use tw_stream::config::Generation as StreamGeneration;
use tw_tls_settings::WatchedCertificate;

use crate::explain::{Explanation, Line, MailToExplain, RequestToExplain, SessionToExplain};

/// A live configuration of all protocols. Clones refer to the same one.
#[derive(Clone)]
pub struct Generation {
    pub(crate) process: GenerationRef<ProcessGeneration>,
    pub(crate) http: GenerationRef<HttpGeneration>,
    /// `None` without a `stream` block.
    pub(crate) stream: Option<GenerationRef<StreamGeneration>>,
    /// `None` without a `mail` block.
    pub(crate) mail: Option<GenerationRef<MailGeneration>>,
}

impl Generation {
    /// Automatic certificates.
    pub fn acme(&self) -> &Arc<AcmeConfig> {
        &self.http.acme
    }

    /// Certificates whose files are watched.
    pub fn watched_certificates(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        let stream = self.stream.iter().flat_map(|stream| stream.watched());
        self.http.watched().chain(stream).chain(self.mail.iter().flat_map(|mail| mail.watched()))
    }

    /// Explains the routing of a request by this generation, which no loop uses. The inner error is the reason why there is
    /// nothing to explain.
    ///
    /// # Errors
    /// Failure to start a thread with a loop.
    pub fn explain(self, request: RequestToExplain) -> io::Result<Result<Explanation, String>> {
        let explanation = explain(self.http, vec![request], new_loop)?.pop();
        explanation.ok_or_else(|| io::Error::other("the loop ended early"))
    }

    /// Explains requests as [`explain`](Self::explain) does one, in their order.
    ///
    /// # Errors
    /// Failure to start a thread with a loop.
    pub fn explain_all(
        self,
        requests: Vec<RequestToExplain>,
    ) -> io::Result<Vec<Result<Explanation, String>>> {
        explain(self.http, requests, new_loop)
    }
}

impl Generation {
    /// Explains a session of `stream`, as [`explain`](Self::explain) does a request.
    ///
    /// # Errors
    /// Failure to start a thread with a loop.
    pub fn explain_session(&self, session: &SessionToExplain) -> io::Result<Result<Explanation, String>> {
        let Some(stream) = &self.stream else { return Ok(Err("there is no \"stream\" block".to_owned())) };
        let explained = tw_stream::explain::explain(stream, session)?;
        let of = |line: tw_stream::explain::Line| Line {
            about: line.about,
            text: line.text,
            span: line.span,
            file: None,
        };
        Ok(explained.map(|lines| Explanation { lines: lines.into_iter().map(of).collect() }))
    }

    /// Explains a session of `mail`.
    ///
    /// # Errors
    /// Reason why there is nothing to explain.
    pub fn explain_mail(&self, session: &MailToExplain) -> Result<Explanation, String> {
        let Some(mail) = &self.mail else { return Err("there is no \"mail\" block".to_owned()) };
        let lines = tw_mail::explain::explain(mail, session)?;
        let of = |line: tw_mail::explain::Line| Line {
            about: line.about,
            text: line.text,
            span: line.span,
            file: None,
        };
        Ok(Explanation { lines: lines.into_iter().map(of).collect() })
    }
}

impl Deref for Generation {
    type Target = ProcessGeneration;

    fn deref(&self) -> &ProcessGeneration {
        &self.process
    }
}

impl LoopConfiguration for Generation {
    fn process(&self) -> GenerationRef<ProcessGeneration> {
        self.process.clone()
    }
}
