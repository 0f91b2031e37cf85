//! Constants in which the `*_pass` modules differ.

/// Constants in which the `*_pass` modules differ.
pub struct ProxyKind {
    /// Prefix of the directives, such as `proxy_`.
    pub prefix: &'static str,
    /// Default `temp_path`, if there is one.
    pub temp_path: Option<&'static [u8]>,
    /// Response fields that are not passed on without `pass_header`.
    pub hidden: &'static [&'static str],
    /// Set if a 404 gets the error page of this server.
    pub answers_404: bool,
    /// Default of `buffering`.
    pub buffers: bool,
    /// Set if a HEAD may be sent as a GET so that the response can be cached.
    pub converts_head: bool,
}

/// Response fields of applications (FastCGI, SCGI, uwsgi) that are not passed on without `pass_header`.
// DIFF(nginx): `Status` of a uwsgi application, too.
pub const HIDDEN_OF_APPLICATIONS: &[&str] = &[
    "Status",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];
