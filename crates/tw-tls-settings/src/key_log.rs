//! Secrets of connections in a file (`ssl_key_log`, `proxy_ssl_key_log`), in the format of NSS, as Wireshark reads it to decrypt
//! traffic.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;

use rustls::KeyLog;
use tw_conf::Word;
use tw_core::load::Resolve;
use tw_core::log::SinkRef;
use tw_core::module::Protocol;
use tw_tls::Zeroizing;

/// Log of secrets. Lines that find no room in its ring are lost.
#[derive(Debug)]
pub struct KeyLogFile(SinkRef);

impl KeyLogFile {
    /// Log in the file of this name, relative to the prefix. The master opens it.
    pub fn new<P: Protocol>(name: &Word, cx: &mut Resolve<'_, P>) -> Self {
        let path = OsString::from_vec(cx.full_path(&name.bytes));
        Self(cx.sink(path.as_ref()))
    }
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let Some(sink) = self.0.sink() else { return };
        // Whatever grew would leave copies behind.
        let size = label.len() + 2 * (client_random.len() + secret.len()) + 3;
        let mut line = Zeroizing::new(String::with_capacity(size));
        line.push_str(label);
        for bytes in [client_random, secret] {
            line.push(' ');
            for byte in bytes {
                // Text takes everything.
                let _ = write!(line, "{byte:02x}");
            }
        }
        line.push('\n');
        // What is lost is counted by the sink.
        let _ = sink.push(line.as_bytes());
    }
}
