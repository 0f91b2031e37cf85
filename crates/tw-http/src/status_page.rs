//! Built-in pages for errors and redirects, equal to nginx's byte for byte.

/// The title of a status' page, which is the heading too unless there is a detail, and the detail line.
fn words(status: u16) -> Option<(&'static str, Option<&'static str>)> {
    let title = match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 | 498 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        407 => "407 Proxy Authentication Required",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        425 => "425 Too Early",
        429 => "429 Too Many Requests",
        494 => return Some(("400 Bad Request", Some("Request Header Or Cookie Too Large"))),
        495 => return Some(("400 Bad Request", Some("The SSL certificate error"))),
        496 => return Some(("400 Bad Request", Some("No required SSL certificate was sent"))),
        497 => return Some(("400 Bad Request", Some("The plain HTTP request was sent to HTTPS port"))),
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => return None,
    };
    Some((title, None))
}

/// Returns `true` if a status has a page; a response without one has an empty body.
pub fn exists(status: u16) -> bool {
    words(status).is_some()
}

/// The status the client sees: nginx's own codes 494 to 497 are a 400 with a page of their own.
pub fn wire_status(status: u16) -> u16 {
    if matches!(status, 494..=497) { 400 } else { status }
}

/// Appends the page of a status; `server` is the line at its foot, e.g. `tailwater/1.0`. Returns `false` if there is
/// none.
pub fn push(status: u16, server: &str, out: &mut Vec<u8>) -> bool {
    let Some((heading, detail)) = words(status) else { return false };
    let mut put = |parts: &[&str]| parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
    match detail {
        None => put(&["<html>\r\n<head><title>", heading, "</title></head>\r\n"]),
        Some(detail) => put(&["<html>\r\n<head><title>400 ", detail, "</title></head>\r\n"]),
    }
    put(&["<body>\r\n<center><h1>", heading, "</h1></center>\r\n"]);
    if let Some(detail) = detail {
        put(&["<center>", detail, "</center>\r\n"]);
    }
    put(&["<hr><center>", server, "</center>\r\n</body>\r\n</html>\r\n"]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(status: u16) -> String {
        let mut out = Vec::new();
        assert_eq!(push(status, "tailwater", &mut out), exists(status));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pages() {
        let not_found = "<html>\r\n<head><title>404 Not Found</title></head>\r\n<body>\r\n\
            <center><h1>404 Not Found</h1></center>\r\n<hr><center>tailwater</center>\r\n\
            </body>\r\n</html>\r\n";
        let too_large = "<html>\r\n<head><title>400 Request Header Or Cookie Too Large</title></head>\r\n\
            <body>\r\n<center><h1>400 Bad Request</h1></center>\r\n\
            <center>Request Header Or Cookie Too Large</center>\r\n\
            <hr><center>tailwater</center>\r\n</body>\r\n</html>\r\n";
        assert_eq!(page(404), not_found);
        assert_eq!(page(494), too_large);
        for status in [200, 204, 300, 304, 417, 418, 499, 506] {
            assert_eq!(page(status), "", "{status}");
        }
    }

    #[test]
    fn titles_name_the_status_on_the_wire() {
        for status in (301..=507).filter(|&status| exists(status) && status != 498) {
            assert!(page(status).contains(&format!("<h1>{} ", wire_status(status))), "{status}");
        }
    }
}
