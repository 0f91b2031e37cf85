//! Texts of reports: a template for each state, of one of three formats or of one's own.

use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_core::vars::write::{put_maybe, put_number};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Template, Value, VarDef};

use super::UploadReport;
use super::zone::UploadState;

/// Names of the states, in the order of templates.
const STATES: [&str; 4] = ["starting", "uploading", "error", "done"];

/// Format of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFormat {
    Java,
    Json,
    Jsonp,
}

/// Format and templates as written.
#[derive(Default)]
pub(super) struct RawTemplates {
    format: Option<OutputFormat>,
    own: [Option<Word>; STATES.len()],
}

/// Templates of one block.
#[derive(Clone)]
pub(super) struct Output {
    templates: [Arc<Template>; STATES.len()],
    pub(super) content_type: Arc<[u8]>,
}

impl OutputFormat {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Java => "text/javascript",
            Self::Json => "application/json",
            Self::Jsonp => "application/javascript",
        }
    }

    /// Texts by state.
    const fn texts(self) -> [&'static str; STATES.len()] {
        match self {
            Self::Java => [
                "new Object({ 'state' : 'starting' })\r\n",
                "new Object({ 'state' : 'uploading', 'received' : $uploadprogress_received, 'size' : $uploadprogress_length })\r\n",
                "new Object({ 'state' : 'error', 'status' : $uploadprogress_status })\r\n",
                "new Object({ 'state' : 'done' })\r\n",
            ],
            Self::Json => [
                "{ \"state\" : \"starting\" }\r\n",
                "{ \"state\" : \"uploading\", \"received\" : $uploadprogress_received, \"size\" : $uploadprogress_length }\r\n",
                "{ \"state\" : \"error\", \"status\" : $uploadprogress_status }\r\n",
                "{ \"state\" : \"done\" }\r\n",
            ],
            Self::Jsonp => [
                "$uploadprogress_callback({ \"state\" : \"starting\" });\r\n",
                "$uploadprogress_callback({ \"state\" : \"uploading\", \"received\" : $uploadprogress_received, \"size\" : $uploadprogress_length });\r\n",
                "$uploadprogress_callback({ \"state\" : \"error\", \"status\" : $uploadprogress_status });\r\n",
                "$uploadprogress_callback({ \"state\" : \"done\" });\r\n",
            ],
        }
    }
}

impl RawTemplates {
    /// Sets the format, which replaces all templates before it.
    pub(super) fn begin(&mut self, format: OutputFormat) -> Result<(), ConfError> {
        *self = Self { format: Some(format), own: Default::default() };
        Ok(())
    }

    /// Reads a template of one state.
    pub(super) fn add(&mut self, node: &Node) -> Result<(), ConfError> {
        let [state, template] = node.words()?;
        let at = STATES.iter().position(|name| state.is(name)).ok_or_else(|| node.invalid_value(state))?;
        self.own[at] = Some(template.clone());
        Ok(())
    }
}

/// Templates of a block, from its own format and templates or those of the enclosing block.
pub(super) fn resolve(
    raw: RawTemplates,
    content_type: Option<Box<[u8]>>,
    outer: Option<&Output>,
    cx: &mut Resolve<'_>,
) -> Result<Output, ConfError> {
    let mut output = match (raw.format, outer) {
        (None, Some(outer)) => outer.clone(),
        (format, _) => {
            let format = format.unwrap_or(OutputFormat::Java);
            let mut compile = |text: &str| cx.own_template(text).map(Arc::new);
            let [starting, uploading, error, done] = format.texts();
            let templates = [compile(starting)?, compile(uploading)?, compile(error)?, compile(done)?];
            Output { templates, content_type: format.content_type().as_bytes().into() }
        }
    };
    for (template, word) in output.templates.iter_mut().zip(&raw.own) {
        if let Some(word) = word {
            *template = Arc::new(cx.template(word)?);
        }
    }
    if let Some(content_type) = content_type {
        output.content_type = content_type.into();
    }
    Ok(output)
}

impl Output {
    /// Template of a state.
    pub(super) fn template(&self, state: UploadState) -> &Template {
        let [starting, uploading, error, done] = &self.templates;
        match state {
            UploadState::Starting => starting,
            UploadState::Uploading { .. } => uploading,
            UploadState::Error { .. } => error,
            UploadState::Done => done,
        }
    }
}

fn report(r: &Request, out: &mut Vec<u8>, put: impl FnOnce(&UploadReport, &mut Vec<u8>) -> Value) -> Value {
    r.extensions.get::<UploadReport>().map_or(Value::Missing, |report| put(&report, out))
}

/// The variables of templates.
pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::one(
        "uploadprogress_received",
        |r, out| {
            report(r, out, |report, out| match report.state {
                UploadState::Uploading { received, .. } => put_number(out, received),
                _ => put_number(out, 0),
            })
        },
        "Bytes of an upload that were received, in a template of upload_progress.",
    ),
    VarDef::one(
        "uploadprogress_length",
        |r, out| {
            report(r, out, |report, out| match report.state {
                UploadState::Uploading { length, .. } => put_number(out, length),
                _ => put_number(out, 0),
            })
        },
        "Bytes of an upload, in a template of upload_progress.",
    ),
    VarDef::one(
        "uploadprogress_status",
        |r, out| {
            report(r, out, |report, out| match report.state {
                UploadState::Error { status } => put_number(out, status.into()),
                _ => put_number(out, 0),
            })
        },
        "Status of an upload that has failed, in a template of upload_progress.",
    ),
    VarDef::one(
        "uploadprogress_callback",
        // DIFF(nginx): anything but the name of a function is left out.
        |r, out| {
            report(r, out, |report, out| {
                let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.');
                put_maybe(out, Some(&*report.callback).filter(|name| name.iter().all(is_plain)))
            })
        },
        "Function that is called with a report, in a template of upload_progress.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_text_for_every_state() {
        for format in [OutputFormat::Java, OutputFormat::Json, OutputFormat::Jsonp] {
            for (state, text) in STATES.iter().zip(format.texts()) {
                assert!(text.contains(state) && text.ends_with("\r\n"), "{format:?} {state}");
            }
        }
    }
}
