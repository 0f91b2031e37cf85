//! Request methods and protocol versions.

/// Request method that nginx distinguishes; every other valid token is [`Method::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `MKCOL`
    Mkcol,
    /// `COPY`
    Copy,
    /// `MOVE`
    Move,
    /// `OPTIONS`
    Options,
    /// `PROPFIND`
    Propfind,
    /// `PROPPATCH`
    Proppatch,
    /// `LOCK`
    Lock,
    /// `UNLOCK`
    Unlock,
    /// `PATCH`
    Patch,
    /// `TRACE`
    Trace,
    /// `CONNECT`
    Connect,
    /// Any other method; the bytes are in the request head.
    Other,
}

impl Method {
    /// Method of a token; case matters (RFC 9110 section 9.1).
    pub fn of(word: &[u8]) -> Method {
        match word {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"MKCOL" => Method::Mkcol,
            b"COPY" => Method::Copy,
            b"MOVE" => Method::Move,
            b"OPTIONS" => Method::Options,
            b"PROPFIND" => Method::Propfind,
            b"PROPPATCH" => Method::Proppatch,
            b"LOCK" => Method::Lock,
            b"UNLOCK" => Method::Unlock,
            b"PATCH" => Method::Patch,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }

    /// Name of the method, empty for [`Method::Other`].
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Mkcol => "MKCOL",
            Method::Copy => "COPY",
            Method::Move => "MOVE",
            Method::Options => "OPTIONS",
            Method::Propfind => "PROPFIND",
            Method::Proppatch => "PROPPATCH",
            Method::Lock => "LOCK",
            Method::Unlock => "UNLOCK",
            Method::Patch => "PATCH",
            Method::Trace => "TRACE",
            Method::Connect => "CONNECT",
            Method::Other => "",
        }
    }

    /// Returns `true` if the response never has a body.
    pub fn is_head(self) -> bool {
        self == Method::Head
    }

    /// Returns `true` for a safe method (RFC 9110 section 9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace | Method::Propfind)
    }

    /// Returns `true` for an idempotent method (RFC 9110 section 9.2.2). nginx retries everything but `POST`, `LOCK`
    /// and `PATCH` on another upstream.
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Method::Post | Method::Lock | Method::Patch)
    }
}

/// A protocol version: major × 1000 + minor, so that versions compare as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u16);

impl Version {
    /// HTTP/0.9: a request line without a version.
    pub const HTTP_09: Version = Version(9);
    /// HTTP/1.0
    pub const HTTP_10: Version = Version(1000);
    /// HTTP/1.1
    pub const HTTP_11: Version = Version(1001);
    /// HTTP/2
    pub const HTTP_2: Version = Version(2000);
    /// HTTP/3
    pub const HTTP_3: Version = Version(3000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_methods_agree() {
        for word in [
            "GET",
            "HEAD",
            "POST",
            "PUT",
            "DELETE",
            "MKCOL",
            "COPY",
            "MOVE",
            "OPTIONS",
            "PROPFIND",
            "PROPPATCH",
            "LOCK",
            "UNLOCK",
            "PATCH",
            "TRACE",
            "CONNECT",
        ] {
            assert_eq!(Method::of(word.as_bytes()).as_str(), word);
        }
        assert_eq!(Method::of(b"get"), Method::Other);
        assert_eq!(Method::of(b"PURGE"), Method::Other);
    }

    #[test]
    fn versions_compare() {
        assert!(Version::HTTP_09 < Version::HTTP_10 && Version::HTTP_10 < Version::HTTP_11);
    }
}
