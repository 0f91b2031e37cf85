//! Responses of the control API: JSON over HTTP/1.1, after which the connection is closed. The master sends all but the metrics, which
//! the worker process has.

/// Head of a response with a body of `length` bytes.
pub fn head(status: u16, length: usize) -> String {
    let line = tw_http::status::line(status).unwrap_or("422 Unprocessable Content");
    let token = if status == 401 { "WWW-Authenticate: Bearer\r\n" } else { "" };
    format!(
        "HTTP/1.1 {line}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nCache-Control: no-store\r\nConnection: close\r\n{token}\r\n"
    )
}

/// Body of an error.
pub fn error(status: u16, text: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "status": status, "text": text } })
}
