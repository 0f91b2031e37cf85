//! Files that configurations usually include, as part of the binary: used where they are not installed. Packages
//! install the same files.

/// Media types by the ends of names.
pub const MEDIA_TYPES: &str = include_str!("../../../tailwater/conf/mime.types");

/// Parameters for PHP.
pub const PHP_PARAMS: &str = include_str!("../../../tailwater/conf/fastcgi.conf");

/// Names and texts, for `include`.
pub const FILES: &[(&str, &str)] = &[
    ("mime.types", MEDIA_TYPES),
    ("fastcgi.conf", PHP_PARAMS),
    ("fastcgi_params", include_str!("../../../tailwater/conf/fastcgi_params")),
    ("uwsgi_params", include_str!("../../../tailwater/conf/uwsgi_params")),
    ("scgi_params", include_str!("../../../tailwater/conf/scgi_params")),
    ("proxy_params", include_str!("../../../tailwater/conf/proxy_params")),
    ("koi-utf", include_str!("../../../tailwater/conf/koi-utf")),
    ("koi-win", include_str!("../../../tailwater/conf/koi-win")),
    ("win-utf", include_str!("../../../tailwater/conf/win-utf")),
];
