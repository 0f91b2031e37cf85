//! Case: a configuration, the responses of its origin server, and requests; everything from one seed.

use crate::node::{self, Node};
use crate::origin::OriginPorts;
use crate::request::Exchange;

/// Configuration and requests that both servers get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    /// Directives of the block `http`.
    pub(crate) nodes: Vec<Node>,
    /// Responses of the origin server.
    pub(crate) script: Vec<String>,
    pub(crate) exchanges: Vec<Exchange>,
}

/// Values that differ between the two servers, for the placeholders of a configuration.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) port: u16,
    pub(crate) origin: OriginPorts,
    pub(crate) root: String,
    pub(crate) prefix: String,
}

/// Name of the log format, whose line begins with the port of the client.
pub(crate) const LOG: &str = "all";

/// Variables in each line of the access log.
pub(crate) const LOGGED: &[&str] = &[
    "request",
    "status",
    "body_bytes_sent",
    "request_uri",
    "uri",
    "args",
    "is_args",
    "document_uri",
    "document_root",
    "request_filename",
    "host",
    "http_host",
    "http_user_agent",
    "http_cookie",
    "cookie_a",
    "arg_a",
    "arg_b",
    "content_type",
    "content_length",
    "request_method",
    "request_length",
    "request_completion",
    "remote_user",
    "scheme",
    "server_protocol",
    "server_name",
    "query_string",
    "connection_requests",
    "pipe",
    "request_body",
    "sent_http_content_type",
    "sent_http_content_length",
    "sent_http_location",
    "sent_http_cache_control",
    "sent_http_connection",
    "sent_http_transfer_encoding",
    "sent_http_last_modified",
    "http_x_a",
    "upstream_status",
    "upstream_cache_status",
    "upstream_http_x_o",
    "upstream_http_content_type",
    "upstream_cookie_o",
    "sent_http_x_o",
    "http_transfer_encoding",
    "limit_rate",
    "sent_trailer_x",
];

impl Places {
    /// Replaces the placeholders of a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("@PORT@", &self.port.to_string())
            .replace("@ORIGIN@", &self.origin.http.to_string())
            .replace("@FASTCGI@", &self.origin.fastcgi.to_string())
            .replace("@UWSGI@", &self.origin.uwsgi.to_string())
            .replace("@SCGI@", &self.origin.scgi.to_string())
            .replace("@ROOT@", &self.root)
            .replace("@PREFIX@", &self.prefix)
    }
}

impl Case {
    /// Text of the whole configuration, with placeholders.
    pub(crate) fn configuration(&self) -> String {
        let variables: Vec<_> = LOGGED.iter().map(|name| format!("{name}=[${name}]")).collect();
        format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\npid @PREFIX@/pid;\nerror_log @PREFIX@/error.log info;\n\
             events {{ worker_connections 256; }}\nhttp {{\n\
             client_body_temp_path @PREFIX@/body;\nproxy_temp_path @PREFIX@/proxy;\nfastcgi_temp_path @PREFIX@/f;\n\
             uwsgi_temp_path @PREFIX@/u;\nscgi_temp_path @PREFIX@/s;\nserver_tokens off;\n\
             log_format {LOG} escape=json '$remote_port {}';\naccess_log @PREFIX@/access.log {LOG};\n{}}}\n",
            variables.join(" "),
            node::render(&self.nodes)
        )
    }

    /// Returns `true` if a server listens where it is asked. Others would be waited for, and would take the port 80.
    pub(crate) fn listens(&self) -> bool {
        let text = node::render(&self.nodes);
        let servers = text.lines().filter(|line| line.trim_start().starts_with("server {"));
        servers.count() == text.matches("listen 127.0.0.1:@PORT@;").count() && text.contains("@PORT@;")
    }

    /// Returns `true` if responses are stored.
    pub(crate) fn has_cache(&self) -> bool {
        node::render(&self.nodes).contains("keys_zone=")
    }

    /// Text of the configuration of one server.
    pub(crate) fn configuration_at(&self, places: &Places) -> String {
        places.fill(&self.configuration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_the_places_of_their_server() {
        let nodes = vec![node::block("server", vec![node::line("listen 127.0.0.1:@PORT@")])];
        let case = Case { nodes, script: Vec::new(), exchanges: Vec::new() };
        let origin = OriginPorts { http: 82, fastcgi: 83, uwsgi: 84, scgi: 85 };
        let places = Places { port: 81, origin, root: "/r".to_owned(), prefix: "/p".to_owned() };
        let text = case.configuration_at(&places);
        assert!(case.listens() && !Case { nodes: Vec::new(), ..case.clone() }.listens());
        assert!(text.contains("listen 127.0.0.1:81;") && text.contains("pid /p/pid;"), "{text}");
        assert!(!text.contains('@') && text.contains("uri=[$uri]"), "{text}");
    }
}
