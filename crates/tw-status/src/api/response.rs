//! Responses of the API: JSON, and errors in nginx's form.

use std::borrow::Cow;

use serde::Serialize;

/// Response of the API.
pub(super) struct ApiResponse {
    pub(super) status: u16,
    pub(super) fields: Vec<(&'static str, Vec<u8>)>,
    pub(super) json: Vec<u8>,
}

/// Response other than the one asked for.
#[derive(Debug)]
pub(super) enum ApiFailure {
    /// As JSON.
    Refusal(ApiError),
    /// Made from its code: the connection is the client's trouble.
    Status(u16),
}

/// Error of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: u16,
    pub(super) code: &'static str,
    text: Cow<'static, str>,
    allow: Option<&'static str>,
}

#[derive(Serialize)]
struct Whole<'a> {
    error: Error<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct Error<'a> {
    status: u16,
    text: &'a str,
    code: &'a str,
}

impl ApiResponse {
    pub(super) fn ok(json: Vec<u8>) -> Self {
        Self { status: 200, fields: Vec::new(), json }
    }

    /// Response without a body.
    pub(super) fn empty(status: u16) -> Self {
        Self { status, fields: Vec::new(), json: Vec::new() }
    }
}

impl ApiError {
    pub(super) const NO_PATH: Self = Self::fixed(404, "PathNotFound", "path not found");
    pub(super) const NO_UPSTREAM: Self = Self::fixed(404, "UpstreamNotFound", "upstream not found");
    pub(super) const NO_SERVER: Self = Self::fixed(404, "UpstreamServerNotFound", "server not found");

    pub(super) const NO_ZONE: Self = Self::fixed(404, "ServerZoneNotFound", "server zone not found");

    pub(super) const NO_CACHE: Self = Self::fixed(404, "CacheNotFound", "cache not found");

    pub(super) const NO_KEYVAL: Self = Self::fixed(404, "KeyvalNotFound", "keyval not found");
    pub(super) const NO_KEY: Self = Self::fixed(404, "KeyvalKeyNotFound", "keyval key not found");

    pub(super) const CROSS_ORIGIN: Self =
        Self::fixed(403, "CrossOrigin", "request of a page of another origin");

    const fn fixed(status: u16, code: &'static str, text: &'static str) -> Self {
        Self { status, code, text: Cow::Borrowed(text), allow: None }
    }

    pub(super) fn new(status: u16, code: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, text: text.into(), allow: None }
    }

    /// Error of a malformed body.
    pub(super) fn format(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, "UpstreamConfFormatError", text)
    }

    /// Only these methods are allowed.
    pub(super) fn method(allow: &'static str) -> Self {
        Self { allow: Some(allow), ..Self::fixed(405, "MethodDisabled", "method disabled") }
    }

    /// Response with this error.
    pub(super) fn answer(&self, request_id: &str) -> ApiResponse {
        let error = Error { status: self.status, text: &self.text, code: self.code };
        let fields = self.allow.iter().map(|allow| ("Allow", allow.as_bytes().to_vec())).collect();
        ApiResponse { status: self.status, fields, json: json(&Whole { error, request_id }) }
    }
}

impl From<ApiError> for ApiFailure {
    fn from(refusal: ApiError) -> Self {
        Self::Refusal(refusal)
    }
}

/// A value as JSON.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    // Serializing fails only for maps whose keys are not strings.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_nginxs_form() {
        let text = |answer: ApiResponse| String::from_utf8(answer.json).unwrap();
        assert_eq!(
            text(ApiError::NO_UPSTREAM.answer("a1")),
            r#"{"error":{"status":404,"text":"upstream not found","code":"UpstreamNotFound"},"request_id":"a1"}"#
        );
        let answer = ApiError::method("GET, HEAD").answer("");
        assert_eq!((answer.status, &answer.fields[..]), (405, &[("Allow", b"GET, HEAD".to_vec())][..]));
    }
}
