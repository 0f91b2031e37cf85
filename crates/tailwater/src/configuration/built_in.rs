//! Files that configurations usually include, as part of the binary: used where they are not installed. Packages
//! install the same files.

/// Media types by the ends of names.
pub(crate) const MEDIA_TYPES: &str = include_str!("../../conf/mime.types");

/// Parameters for PHP.
pub(crate) const PHP_PARAMS: &str = include_str!("../../conf/fastcgi.conf");

/// Names and texts, for `include`.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("mime.types", MEDIA_TYPES),
    ("fastcgi.conf", PHP_PARAMS),
    ("fastcgi_params", include_str!("../../conf/fastcgi_params")),
    ("uwsgi_params", include_str!("../../conf/uwsgi_params")),
    ("scgi_params", include_str!("../../conf/scgi_params")),
    ("proxy_params", include_str!("../../conf/proxy_params")),
    ("koi-utf", include_str!("../../conf/koi-utf")),
    ("koi-win", include_str!("../../conf/koi-win")),
    ("win-utf", include_str!("../../conf/win-utf")),
];
