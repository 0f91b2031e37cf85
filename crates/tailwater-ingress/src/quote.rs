//! Texts of objects as words of a configuration. Whoever may write an Ingress may not write the configuration: each text becomes exactly
//! one word, or is refused.

/// Longest text that becomes a word.
const WORD_SIZE_MAX: usize = 4096;

/// Variables of a request that templates of annotations may have. None has anything of the server's own, such as names of files.
const VARIABLES: &[&str] = &[
    "args",
    "binary_remote_addr",
    "content_length",
    "content_type",
    "escaped_request_uri",
    "host",
    "hostname",
    "http_host",
    "https",
    "is_args",
    "proxy_add_x_forwarded_for",
    "query_string",
    "remote_addr",
    "remote_user",
    "request_id",
    "request_method",
    "request_uri",
    "scheme",
    "server_name",
    "server_port",
    "ssl_client_fingerprint",
    "ssl_client_i_dn",
    "ssl_client_s_dn",
    "ssl_client_serial",
    "ssl_client_verify",
    "uri",
];
/// Beginnings of names of such variables.
const VARIABLE_BEGINS: &[&str] = &["arg_", "cookie_", "http_"];
/// Variables of ingress-nginx that others stand for here.
const RENAMED: &[(&str, &str)] = &[
    ("best_http_host", "ingress_host"),
    ("escaped_request_uri", "ingress_escaped_uri"),
    ("pass_access_scheme", "ingress_scheme"),
    ("the_real_ip", "remote_addr"),
    ("req_id", "ingress_request_id"),
];

/// One word in quotes, whatever it has but control characters.
fn quoted(text: &str) -> Option<String> {
    if text.len() > WORD_SIZE_MAX || text.chars().any(char::is_control) {
        return None;
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    Some(out)
}

/// Word without variables.
pub fn literal(text: &str) -> Option<String> {
    quoted(text).filter(|_| !text.contains('$'))
}

/// Word of a directive that knows no variables: a path of a location or a regular expression.
pub fn verbatim(text: &str) -> Option<String> {
    quoted(text)
}

/// Word with variables that are allowed in annotations.
pub fn template(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out += before;
        let (name, remaining_text) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}')?,
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                after.split_at(end)
            }
        };
        out += &format!("${{{}}}", variable(name)?);
        rest = remaining_text;
    }
    out += rest;
    quoted(&out)
}

/// Name of an allowed variable, as the configuration has it.
fn variable(name: &str) -> Option<&str> {
    if let Some((_, other)) = RENAMED.iter().find(|(candidate, _)| *candidate == name) {
        return Some(other);
    }
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_known = VARIABLES.contains(&name)
        || VARIABLE_BEGINS.iter().any(|begin| name.len() > begin.len() && name.starts_with(begin));
    (is_word && is_known).then_some(name)
}

/// Target of a rewrite: text and captures.
pub fn rewrite_target(text: &str) -> Option<String> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        if !after.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        rest = after;
    }
    quoted(text)
}

/// Text as a part of a regular expression that matches only itself.
pub fn regex_escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && !matches!(c, '/' | '_' | '-' | '%' | '~') && c.is_ascii() {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns true for a name of DNS with lower-case letters, as hosts of rules are.
pub fn is_host(text: &str) -> bool {
    crate::cluster::object::is_name(text) && !text.contains("..")
}

/// Returns true for a name of a header field.
pub fn is_field_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Returns true for a field that says something of the message, not of its framing or its connection.
pub fn is_end_to_end_field(text: &str) -> bool {
    let framing = [
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    is_field_name(text) && !framing.iter().any(|name| text.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        for (text, as_literal, as_template) in [
            ("a b", Some("\"a b\""), Some("\"a b\"")),
            ("a;}\"\\", Some("\"a;}\\\"\\\\\""), Some("\"a;}\\\"\\\\\"")),
            ("a\nb", None, None),
            ("a\0", None, None),
            ("$host", None, Some("\"${host}\"")),
            ("x${http_a}y", None, Some("\"x${http_a}y\"")),
            ("$best_http_host$request_uri", None, Some("\"${ingress_host}${request_uri}\"")),
            ("$document_root", None, None),
            ("$ssl_server_key", None, None),
            ("${host", None, None),
            ("$", None, None),
            ("$http_", None, None),
            ("${http_a;b}", None, None),
        ] {
            assert_eq!(literal(text).as_deref(), as_literal, "{text:?}");
            assert_eq!(template(text).as_deref(), as_template, "{text:?}");
        }
        assert_eq!(rewrite_target("/$1/$2").as_deref(), Some("\"/$1/$2\""));
        assert_eq!(rewrite_target("/$host"), None);
        assert_eq!(rewrite_target("/a$"), None);
        assert_eq!(literal(&"x".repeat(WORD_SIZE_MAX + 1)), None);
        assert_eq!(regex_escaped("/a.b(c)$"), "/a\\.b\\(c\\)\\$");
    }
}
