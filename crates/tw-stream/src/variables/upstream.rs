//! `$upstream_*` that only `stream` has; the others are in `tw-connect`.

use tw_connect::upstream_attempt::{put_each, put_span};
use tw_core::vars::VarDef;

use crate::session::StreamSession;

pub(super) static VARIABLES: &[VarDef<StreamSession>] = &[
    VarDef::one(
        "upstream_first_byte_time",
        |s, out| put_each(s, out, |attempt, out| put_span(out, attempt.first_byte)),
        "Seconds until their first byte was there.",
    ),
    VarDef::one(
        "upstream_session_time",
        |s, out| put_each(s, out, |attempt, out| put_span(out, attempt.ended)),
        "Seconds until the sessions with them were over.",
    ),
];
