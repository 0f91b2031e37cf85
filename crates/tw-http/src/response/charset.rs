//! Character set of a response: a parameter of its media type, or apart from it.

use bytes::Bytes;

use super::ResponseHead;

const CHARSET: &[u8] = b"charset=";

impl ResponseHead {
    /// The character set that `Content-Type` names, quotes left out. Cost: a pass over the media type.
    pub fn own_charset(&self) -> Option<Bytes> {
        if !self.charset.is_empty() {
            return Some(self.charset.clone());
        }
        let (_, value) = named(&self.content_type)?;
        Some(self.content_type.slice_ref(value))
    }

    /// Removes the character set and all later parameters from the media type, so that another one can be added.
    pub fn cut_charset(&mut self) {
        if let Some((end, _)) = named(&self.content_type) {
            self.content_type.truncate(end);
        }
        self.charset = Bytes::new();
    }
}

/// Finds the parameter, with its semicolon, and its value; the first one counts, and one without a value does not.
fn named(content_type: &[u8]) -> Option<(usize, &[u8])> {
    let mut at = 0;
    let parameters = content_type.split(|byte| *byte == b';').map(|parameter| {
        let begins = at;
        at += parameter.len() + 1;
        (begins, parameter.trim_ascii())
    });
    let mut values = parameters.skip(1).filter_map(|(begins, parameter)| {
        let (name, value) = parameter.split_at_checked(CHARSET.len())?;
        name.eq_ignore_ascii_case(CHARSET).then(|| (begins.saturating_sub(1), value.trim_ascii()))
    });
    let (begins, value) = values.next()?;
    let value = value.strip_prefix(b"\"").unwrap_or(value);
    let value = value.strip_suffix(b"\"").unwrap_or(value);
    (!value.is_empty()).then_some((begins, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charsets_are_found_and_cut() {
        for (content_type, charset, rest) in [
            ("text/html", None, "text/html"),
            ("text/html;charset=utf-8", Some("utf-8"), "text/html"),
            ("text/html ; Charset=\"utf-8\"", Some("utf-8"), "text/html "),
            ("text/html; a=b; charset=x; c=d", Some("x"), "text/html; a=b"),
            ("text/html; charset=", None, "text/html; charset="),
            ("text/html; charset=\"\"", None, "text/html; charset=\"\""),
            ("charset=x", None, "charset=x"),
            ("", None, ""),
        ] {
            let mut head = ResponseHead::new(200);
            head.content_type = content_type.as_bytes().to_vec().into();
            assert_eq!(head.own_charset().as_deref(), charset.map(str::as_bytes), "{content_type}");
            head.cut_charset();
            assert_eq!(head.content_type, rest, "{content_type}");
        }
    }

    #[test]
    fn separate_charset_counts() {
        let mut head = ResponseHead::new(200);
        (head.content_type, head.charset) = ("text/html".into(), "x".into());
        assert_eq!(head.own_charset().as_deref(), Some(&b"x"[..]));
        head.cut_charset();
        assert_eq!((&*head.content_type, &*head.charset), (&b"text/html"[..], &b""[..]));
    }
}
