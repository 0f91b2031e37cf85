//! Variables of nginx that a configuration may define itself, and those that it may not: facts of nginx 1.31.5 (the flag
//! `CHANGEABLE` of its records).

/// Variables that one protocol of nginx has by itself. Those of its commercial version are none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NginxVariables {
    /// Names that a configuration cannot define, separated by blanks.
    fixed: &'static str,
    /// Names that a configuration may define, separated by blanks.
    changeable: &'static str,
}

impl NginxVariables {
    /// Variables of `http`.
    pub const HTTP: Self = Self {
        fixed: "binary_remote_addr body_bytes_sent bytes_sent connection connection_requests connection_time \
        connections_active connections_reading connections_waiting connections_writing content_length \
        content_type date_gmt date_local document_root document_uri fastcgi_path_info fastcgi_script_name \
        geoip_area_code geoip_city geoip_city_continent_code geoip_city_country_code \
        geoip_city_country_code3 geoip_city_country_name geoip_country_code geoip_country_code3 \
        geoip_country_name geoip_dma_code geoip_latitude geoip_longitude geoip_org geoip_postal_code \
        geoip_region geoip_region_name grpc_internal_trailers gzip_ratio host hostname http2 http3 \
        http_cookie http_host http_referer http_user_agent http_via http_x_forwarded_for https is_args \
        is_request_port limit_conn_status limit_req_status msec nginx_version pid pipe proxy_add_via \
        proxy_add_x_forwarded_for proxy_internal_body_length proxy_internal_chunked proxy_protocol_addr \
        proxy_protocol_port proxy_protocol_server_addr proxy_protocol_server_port query_string \
        realip_remote_addr realip_remote_port realpath_root remote_addr remote_port remote_user request \
        request_body request_body_file request_completion request_filename request_id request_length \
        request_method request_port request_time request_uri scheme secure_link secure_link_expires \
        sent_http_cache_control sent_http_connection sent_http_content_length sent_http_content_type \
        sent_http_keep_alive sent_http_last_modified sent_http_link sent_http_location \
        sent_http_transfer_encoding server_addr server_name server_port server_protocol slice_range status \
        tcpinfo_rcv_space tcpinfo_rtt tcpinfo_rttvar tcpinfo_snd_cwnd time_iso8601 time_local uid_got \
        uid_set upstream_addr upstream_bytes_received upstream_bytes_sent upstream_cache_etag \
        upstream_cache_last_modified upstream_cache_status upstream_connect_time upstream_header_time \
        upstream_response_length upstream_response_time upstream_status uri",
        changeable: "ancient_browser args invalid_referer limit_rate modern_browser msie proxy_host proxy_port \
        ssl_alpn_protocol ssl_cipher ssl_ciphers ssl_client_cert ssl_client_escaped_cert \
        ssl_client_fingerprint ssl_client_i_dn ssl_client_i_dn_legacy ssl_client_raw_cert ssl_client_s_dn \
        ssl_client_s_dn_legacy ssl_client_serial ssl_client_sigalg ssl_client_v_end ssl_client_v_remain \
        ssl_client_v_start ssl_client_verify ssl_curve ssl_curves ssl_early_data ssl_ech_outer_server_name \
        ssl_ech_status ssl_protocol ssl_server_name ssl_session_id ssl_session_reused ssl_sigalg ssl_sigalgs \
        uid_reset",
    };

    /// Variables of `stream`.
    pub const STREAM: Self = Self {
        fixed: "binary_remote_addr bytes_received bytes_sent connection geoip_area_code geoip_city \
        geoip_city_continent_code geoip_city_country_code geoip_city_country_code3 geoip_city_country_name \
        geoip_country_code geoip_country_code3 geoip_country_name geoip_dma_code geoip_latitude \
        geoip_longitude geoip_org geoip_postal_code geoip_region geoip_region_name hostname \
        limit_conn_status msec nginx_version pid protocol proxy_protocol_addr proxy_protocol_port \
        proxy_protocol_server_addr proxy_protocol_server_port realip_remote_addr realip_remote_port \
        remote_addr remote_port server_addr server_name server_port session_time ssl_preread_alpn_protocols \
        ssl_preread_protocol ssl_preread_server_name status time_iso8601 time_local upstream_addr \
        upstream_bytes_received upstream_bytes_sent upstream_connect_time upstream_first_byte_time \
        upstream_session_time",
        changeable: "ssl_alpn_protocol ssl_cipher ssl_ciphers ssl_client_cert ssl_client_escaped_cert \
        ssl_client_fingerprint ssl_client_i_dn ssl_client_raw_cert ssl_client_s_dn ssl_client_serial \
        ssl_client_sigalg ssl_client_v_end ssl_client_v_remain ssl_client_v_start ssl_client_verify \
        ssl_curve ssl_curves ssl_ech_outer_server_name ssl_ech_status ssl_protocol ssl_server_name \
        ssl_session_id ssl_session_reused ssl_sigalg ssl_sigalgs",
    };

    /// Variables of `mail`, in which nginx has none.
    pub const MAIL: Self = Self { fixed: "", changeable: "" };

    /// Variables with these names, separated by blanks: that cannot be defined, and that may be.
    pub const fn new(fixed: &'static str, changeable: &'static str) -> Self {
        Self { fixed, changeable }
    }

    /// Names, in lower case, that a configuration cannot define.
    pub fn fixed(&self) -> impl Iterator<Item = &'static str> {
        self.fixed.split_ascii_whitespace()
    }

    /// Names, in lower case, that nginx has and a configuration may define anew.
    pub fn changeable(&self) -> impl Iterator<Item = &'static str> {
        self.changeable.split_ascii_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_and_changeable_names() {
        let http = NginxVariables::HTTP;
        let stream = NginxVariables::STREAM;
        let of = |names: NginxVariables, name: &str| {
            (names.fixed().any(|fixed| fixed == name), names.changeable().any(|other| other == name))
        };
        for (name, is_fixed, is_changeable) in [
            ("uri", true, false),
            ("http_host", true, false),
            ("sent_http_link", true, false),
            ("args", false, true),
            ("proxy_host", false, true),
            ("ssl_early_data", false, true),
            ("invalid_referer", false, true),
            ("jwt_payload", false, false),
            ("time_iso8601_ms", false, false),
            ("http_", false, false),
        ] {
            assert_eq!(of(http, name), (is_fixed, is_changeable), "{name}");
        }
        for (name, is_fixed, is_changeable) in [
            ("session_time", true, false),
            ("ssl_preread_server_name", true, false),
            ("ssl_server_name", false, true),
            ("uri", false, false),
            ("mqtt_preread_clientid", false, false),
        ] {
            assert_eq!(of(stream, name), (is_fixed, is_changeable), "{name}");
        }
    }
}
