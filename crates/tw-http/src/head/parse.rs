//! The request head parser.

use super::{Framing, HeadError, HeadLimits, Progress, RequestHead, Span};
use crate::method::{Method, Version};

#[derive(Debug)]
pub(super) struct Parser {
    pos: usize,
}

impl Parser {
    pub(super) const fn new() -> Self {
        Parser { pos: 0 }
    }

    pub(super) fn is_at_start(&self) -> bool {
        self.pos == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum HostAt {
    None,
    Raw(Span),
    Lowered,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionWish {
    Default,
    Close,
    KeepAlive,
}

#[derive(Debug)]
pub(super) struct RequestLine {
    pub(super) whole: Span,
    pub(super) method: Method,
    pub(super) method_word: Span,
    pub(super) target: Span,
    pub(super) raw_path: Span,
    pub(super) args: Span,
    pub(super) exten: Span,
    pub(super) scheme: Option<Span>,
    pub(super) protocol: Span,
    pub(super) version: Version,
    pub(super) host: HostAt,
    pub(super) host_port: Option<u16>,
    pub(super) empty_path: bool,
    pub(super) path_is_raw: bool,
    pub(super) quoted: bool,
    pub(super) framing: Framing,
    pub(super) connection: ConnectionWish,
}

impl RequestLine {
    pub(super) const fn new() -> Self {
        const NOTHING: Span = Span { start: 0, end: 0 };
        RequestLine {
            whole: NOTHING,
            method: Method::Other,
            method_word: NOTHING,
            target: NOTHING,
            raw_path: NOTHING,
            args: NOTHING,
            exten: NOTHING,
            scheme: None,
            protocol: NOTHING,
            version: Version::HTTP_09,
            host: HostAt::None,
            host_port: None,
            empty_path: false,
            path_is_raw: true,
            quoted: false,
            framing: Framing::None,
            connection: ConnectionWish::Default,
        }
    }
}

pub(super) fn advance(head: &mut RequestHead, _limits: &HeadLimits) -> Result<Progress, HeadError> {
    head.parser.pos = 0;
    Ok(Progress::NeedMore)
}
