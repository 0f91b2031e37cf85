//! Dynamic modules: what `load_module` of nginx names, and whether it is built in here.

use super::foreign::hint_for_module;
use super::nginx_directives;
use crate::context::{STREAM, STREAM_SERVER, STREAM_UPSTREAM};
use crate::directive::DirectiveInfo;
use crate::error::{ConfError, Level};
use crate::tree::{Node, Word};

/// Modules of others that are loaded as files, and a directive that each is there for.
const OF_OTHERS: &[(&str, &str)] = &[
    ("ngx_http_brotli_filter_module", "brotli"),
    ("ngx_http_brotli_static_module", "brotli_static"),
    ("ngx_http_echo_module", "echo"),
    ("ngx_http_headers_more_filter_module", "more_set_headers"),
    ("ngx_http_set_misc_module", "set_if_empty"),
    ("ndk_http_module", "upstream_list"),
    ("ngx_http_subs_filter_module", "subs_filter"),
    ("ngx_http_dav_ext_module", "dav_ext_methods"),
    ("ngx_http_fancyindex_module", "fancyindex"),
    ("ngx_http_geoip2_module", "geoip2"),
    ("ngx_stream_geoip2_module", "geoip2"),
    ("ngx_http_proxy_connect_module", "proxy_connect"),
    ("ngx_http_uploadprogress_module", "track_uploads"),
    ("ngx_http_vhost_traffic_status_module", "vhost_traffic_status_zone"),
    ("ngx_http_zstd_filter_module", "zstd"),
    ("ngx_http_zstd_static_module", "zstd_static"),
];

/// The module in a file: `ngx_http_perl_module` for `modules/ngx_http_perl_module-1.2.so`.
pub fn module_of_file(file: &Word) -> String {
    let file = file.lossy();
    let name = file.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".so").unwrap_or(name);
    // Some packages have the version in the file name.
    name.split_once("_module-").map_or_else(|| name.to_owned(), |(name, _)| format!("{name}_module"))
}

/// Returns `true` if the `supported` directives include one of this module, so that it need not be loaded.
pub fn is_built_in(module: &str, supported: &[DirectiveInfo]) -> bool {
    let has = |name: &str, contexts| {
        supported.iter().any(|info| info.name == name && info.contexts & contexts != 0)
    };
    // The one file for all that stands in `stream`.
    const STREAMS: u32 = STREAM | STREAM_SERVER | STREAM_UPSTREAM;
    match OF_OTHERS.iter().find(|(theirs, _)| *theirs == module) {
        Some((_, directive)) => has(directive, u32::MAX),
        None if module == "ngx_stream_module" => supported.iter().any(|info| info.contexts & STREAMS != 0),
        None => nginx_directives().any(|nginx_directive| {
            nginx_directive.module == module && has(nginx_directive.name, nginx_directive.contexts)
        }),
    }
}

/// Warning about the file of a missing module. Each directive of the module that is used is an error of its own.
pub fn missing_module(node: &Node, file: &Word) -> ConfError {
    let module = module_of_file(file);
    let hint =
        hint_for_module(&module).unwrap_or("a directive or variable of it is refused where it is used");
    let message = format!(
        "module \"{module}\" is not supported by this version of Tailwater, \"load_module\" has no effect"
    );
    ConfError { level: Level::Warn, ..node.fail(message).at(file.span).hint(hint) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{HTTP, LOCATION};
    use crate::{Args, MemoryFiles, Reader, Tree, record};

    #[test]
    fn module_files_and_built_in_modules() {
        let supported = [
            record::flag("brotli", HTTP),
            record::new("set_real_ip_from", "address", HTTP, Args::exact(1)),
            record::flag("gzip", LOCATION),
        ];
        for (file, module, built_in) in [
            ("modules/ngx_http_brotli_filter_module.so", "ngx_http_brotli_filter_module", true),
            ("ngx_http_brotli_static_module.so", "ngx_http_brotli_static_module", false),
            ("/usr/lib/nginx/modules/ngx_http_realip_module.so", "ngx_http_realip_module", true),
            ("modules/ngx_http_perl_module-1.26.so", "ngx_http_perl_module", false),
            ("ngx_stream_module.so", "ngx_stream_module", false),
            ("x.so", "x", false),
            ("", "", false),
        ] {
            let mut tree = Tree::default();
            let text = format!("load_module \"{file}\";");
            Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
            let word = &tree.nodes[0].args[0];
            assert_eq!(module_of_file(word), module, "{file}");
            assert_eq!(is_built_in(module, &supported), built_in, "{file}");
            assert_eq!(missing_module(&tree.nodes[0], word).level, Level::Warn);
        }
        assert!(is_built_in("ngx_stream_module", &[record::flag("tcp_nodelay", STREAM)]));
    }
}
