//! `fastcgi_pass`, `uwsgi_pass` and `scgi_pass`: parameters, bodies, and the output of applications.

use tw_testkit::random::Random;

use crate::node::{Node, line};

/// Settings, where `@` is the name of the protocol.
const SETTINGS: &[&str] = &[
    "@_param REQUEST_URI $request_uri",
    "@_param REQUEST_METHOD $request_method",
    "@_param CONTENT_TYPE $content_type",
    "@_param QUERY_STRING $args",
    "@_param SERVER_PROTOCOL $server_protocol",
    "@_param EMPTY $arg_none if_not_empty",
    "@_param EMPTY ''",
    "@_param HTTP_X_A own",
    "@_param HTTP_X_A $arg_a if_not_empty",
    "@_pass_request_headers off",
    "@_pass_request_body off",
    "@_intercept_errors on",
    "@_hide_header X-O",
    "@_pass_header Status",
    "@_pass_header Server",
    "@_ignore_headers X-Accel-Redirect",
    "@_buffering off",
    "@_request_buffering off",
    "@_force_ranges on",
    "@_next_upstream off",
    "@_buffer_size 4k",
    "@_limit_rate 0",
    "error_page 404 500 502 /err.html",
    "error_page 503 = @n1",
    "add_header X-U $upstream_status",
    "add_header X-C $upstream_http_x_o always",
    "expires 1h",
    "gzip on",
    "charset utf-8",
    "client_max_body_size 4",
    "client_body_buffer_size 8",
    "underscores_in_headers on",
];

/// Settings of FastCGI alone.
const FASTCGI: &[&str] = &[
    "fastcgi_index index.php",
    "fastcgi_split_path_info ^(/l[0-9])(.*)$",
    "fastcgi_param SCRIPT_NAME $fastcgi_script_name",
    "fastcgi_param PATH_INFO $fastcgi_path_info",
    "fastcgi_param CONTENT_LENGTH $content_length",
    "fastcgi_keep_conn off",
    "fastcgi_catch_stderr FATAL",
];

/// Settings of uwsgi alone.
const UWSGI: &[&str] = &["uwsgi_modifier1 5", "uwsgi_modifier2 6"];

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    for protocol in ["fastcgi", "uwsgi", "scgi"] {
        if random.happens(50) {
            nodes.push(line(named(random.one_of(SETTINGS), protocol)));
        }
    }
}

pub(super) fn contents(random: &mut Random, nodes: &mut Vec<Node>) {
    let protocol = random.one_of(&["fastcgi", "fastcgi", "uwsgi", "scgi"]);
    let own: &[&str] = match protocol {
        "fastcgi" => FASTCGI,
        "uwsgi" => UWSGI,
        _ => &[],
    };
    for _ in 0..random.below(4) {
        let setting = if !own.is_empty() && random.happens(30) {
            random.one_of(own).to_owned()
        } else {
            named(random.one_of(SETTINGS), protocol)
        };
        let setting = line(setting);
        if !nodes.contains(&setting) {
            nodes.push(setting);
        }
    }
    let port = format!("@{}@", protocol.to_ascii_uppercase());
    nodes.push(line(format!("{protocol}_pass 127.0.0.1:{port}")));
}

/// Setting of one protocol.
fn named(setting: &str, protocol: &str) -> String {
    setting.strip_prefix('@').map_or_else(|| setting.to_owned(), |rest| format!("{protocol}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_belong_to_a_protocol() {
        assert_eq!(named("@_buffering off", "scgi"), "scgi_buffering off");
        assert_eq!(named("error_page 503 = @n1", "scgi"), "error_page 503 = @n1");
    }
}
