//! Origins behind the server under test.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};

use tw_testkit::origin::origin;

/// An origin that echoes the head of every request and the size of its body.
pub(crate) fn mirror() -> SocketAddr {
    origin(|mut conn| {
        while let Some(head) = conn.head() {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            if head.contains("Transfer-Encoding: chunked") {
                body = chunks(&mut conn.reader);
            } else {
                conn.reader.read_exact(&mut body).unwrap();
            }
            let page = format!("{head}{} bytes", body.len());
            let size = page.len();
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nX-oDD: a\r\nContent-Length: {size}\r\nx-Odd: b\r\n\r\n{page}"
            ));
        }
    })
}

/// The data of a chunked body.
fn chunks(reader: &mut BufReader<TcpStream>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return all;
        }
        all.extend_from_slice(&chunk[..size]);
    }
}
