//! Protocol of NATS, as a client reads it: lines and payloads, without I/O.
//!
//! ```text
//! INFO {json}␍␊   PING␍␊   PONG␍␊   +OK␍␊   -ERR 'text'␍␊
//! MSG subject sid [reply] size␍␊payload␍␊
//! HMSG subject sid [reply] size-of-headers size-of-all␍␊headers payload␍␊
//! ```

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// A line of the engine of a fleet.
    ///
    /// Bytes of a line. `INFO` lists all servers of a cluster.
    const LINE_SIZE_MAX: usize = 64 << 10, bytes, "the connection is closed, and made again";
    /// A message of the engine of a fleet.
    ///
    /// Bytes of headers and payload of a message that are kept. More than [`RECORD_SIZE_MAX`](crate::record::RECORD_SIZE_MAX),
    /// in base64.
    const PAYLOAD_SIZE_MAX: usize = 1 << 20, bytes, "its content is skipped";
    /// A message of the engine of a fleet whose content is skipped.
    ///
    /// Bytes of a message that are skipped at all. A server takes no larger one.
    const MESSAGE_SIZE_MAX: usize = 64 << 20, bytes, "the connection is closed, and made again";
}

/// Message of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) subject: String,
    /// Number of the subscription that it is for.
    pub(crate) subscription: u64,
    /// Subject for a reply.
    pub(crate) reply: Option<String>,
    /// Headers with their first line; empty if there are none.
    pub(crate) headers: Vec<u8>,
    /// Content; `None` if it was too large.
    pub(crate) payload: Option<Vec<u8>>,
}

/// Operation of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerOperation {
    Info(Vec<u8>),
    Message(Message),
    Ping,
    Pong,
    Acknowledged,
    Error(String),
}

/// Input that is none of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotNats;

/// Message whose content is being read.
#[derive(Debug)]
struct PendingMessage {
    message: Message,
    headers_size: usize,
    size: usize,
}

/// Parser of what a server sends.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    input: Vec<u8>,
    pending: Option<PendingMessage>,
    /// Bytes of content to drop, with the end of the line.
    to_skip: usize,
}

impl Parser {
    /// Adds bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// True if no byte waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    /// The next operation; `None` if it is not complete.
    pub(crate) fn next(&mut self) -> Result<Option<ServerOperation>, NotNats> {
        loop {
            if self.to_skip > 0 {
                let skipped = self.to_skip.min(self.input.len());
                self.input.drain(..skipped);
                self.to_skip -= skipped;
                if self.to_skip > 0 {
                    return Ok(None);
                }
                if let Some(pending) = self.pending.take() {
                    return Ok(Some(ServerOperation::Message(pending.message)));
                }
            }
            if self.pending.is_some() {
                return Ok(self.take_content()?.map(ServerOperation::Message));
            }
            let Some(line) = self.take_line()? else { return Ok(None) };
            match parse_line(&line)? {
                Line::Operation(operation) => return Ok(Some(operation)),
                Line::Message(mut pending) => {
                    if pending.size > PAYLOAD_SIZE_MAX {
                        // The end of the line, too.
                        self.to_skip = pending.size + 2;
                        pending.message.payload = None;
                    }
                    self.pending = Some(pending);
                }
            }
        }
    }

    fn take_line(&mut self) -> Result<Option<Vec<u8>>, NotNats> {
        let looked_at = self.input.get(..self.input.len().min(LINE_SIZE_MAX)).unwrap_or_default();
        let Some(end) = looked_at.iter().position(|byte| *byte == b'\n') else {
            return if self.input.len() >= LINE_SIZE_MAX { Err(NotNats) } else { Ok(None) };
        };
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }

    fn take_content(&mut self) -> Result<Option<Message>, NotNats> {
        let Some(size) = self.pending.as_ref().map(|pending| pending.size) else { return Ok(None) };
        if self.input.len() < size + 2 {
            return Ok(None);
        }
        let Some(PendingMessage { mut message, headers_size, size }) = self.pending.take() else {
            return Ok(None);
        };
        let mut content: Vec<u8> = self.input.drain(..size).collect();
        if !self.input.starts_with(b"\r\n") {
            return Err(NotNats);
        }
        self.input.drain(..2);
        message.payload = Some(content.split_off(headers_size.min(content.len())));
        message.headers = content;
        Ok(Some(message))
    }
}

enum Line {
    Operation(ServerOperation),
    Message(PendingMessage),
}

fn parse_line(line: &[u8]) -> Result<Line, NotNats> {
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (word, rest) = line.split_at_checked(end).ok_or(NotNats)?;
    let rest = rest.trim_ascii();
    let operation = match word.to_ascii_uppercase().as_slice() {
        b"MSG" => return message(rest, 1).map(Line::Message),
        b"HMSG" => return message(rest, 2).map(Line::Message),
        b"INFO" => ServerOperation::Info(rest.to_vec()),
        b"PING" => ServerOperation::Ping,
        b"PONG" => ServerOperation::Pong,
        b"+OK" => ServerOperation::Acknowledged,
        b"-ERR" => ServerOperation::Error(shown(rest)),
        _ => return Err(NotNats),
    };
    Ok(Line::Operation(operation))
}

/// Text of a server for a log: one short line.
pub(crate) fn shown(text: &[u8]) -> String {
    const SHOWN_MAX: usize = 200;
    let text = String::from_utf8_lossy(text);
    let text = text.trim_matches('\'');
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(SHOWN_MAX).collect()
}

/// Reads the arguments of a message with this many sizes.
fn message(arguments: &[u8], sizes: usize) -> Result<PendingMessage, NotNats> {
    let text = str::from_utf8(arguments).map_err(|_| NotNats)?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (reply, numbers) = match words.len().checked_sub(2 + sizes) {
        Some(0) => (None, words.get(2..)),
        Some(1) => (words.get(2).map(|reply| (*reply).to_owned()), words.get(3..)),
        _ => return Err(NotNats),
    };
    let number = |text: &&str| text.parse::<usize>().ok().filter(|number| *number <= MESSAGE_SIZE_MAX);
    let numbers: Option<Vec<usize>> = numbers.unwrap_or_default().iter().map(number).collect();
    let (headers_size, size) = match numbers.as_deref() {
        Some([size]) => (0, *size),
        Some([headers, size]) if headers <= size => (*headers, *size),
        _ => return Err(NotNats),
    };
    let subject = words.first().map(|subject| (*subject).to_owned()).ok_or(NotNats)?;
    let subscription = words.get(1).and_then(|word| word.parse().ok()).ok_or(NotNats)?;
    let message = Message { subject, subscription, reply, headers: Vec::new(), payload: None };
    Ok(PendingMessage { message, headers_size, size })
}

impl Message {
    /// A message that is only its headers.
    pub(crate) fn of_headers(headers: Vec<u8>) -> Self {
        Self { subject: String::new(), subscription: 0, reply: None, headers, payload: None }
    }

    /// Status of the headers: `NATS/1.0 503`.
    pub(crate) fn status(&self) -> Option<u16> {
        let line = self.headers.split(|byte| *byte == b'\n').next()?;
        str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// Words behind the status.
    pub(crate) fn status_text(&self) -> String {
        let line = self.headers.split(|byte| *byte == b'\n').next().unwrap_or_default();
        shown(line.get(9..).unwrap_or_default().trim_ascii())
    }

    /// Value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.split(|byte| *byte == b'\n').skip(1);
        lines
            .filter_map(|line| str::from_utf8(line).ok()?.split_once(':'))
            .find_map(|(candidate, value)| candidate.trim().eq_ignore_ascii_case(name).then(|| value.trim()))
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::Random;

    use super::*;

    fn all(input: &[u8], piece: usize) -> Result<Vec<ServerOperation>, NotNats> {
        let mut parser = Parser::default();
        let mut server_operations = Vec::new();
        for piece in input.chunks(piece) {
            parser.push(piece);
            while let Some(operation) = parser.next()? {
                server_operations.push(operation);
            }
        }
        Ok(server_operations)
    }

    fn payload(text: &str) -> Option<Vec<u8>> {
        Some(text.as_bytes().to_vec())
    }

    #[test]
    fn operations_are_read_however_they_are_split() {
        let input = b"INFO {\"a\":1}\r\nPING\r\npong\n+OK\r\n-ERR 'Authorization Violation'\r\nMSG a.b 1 5\r\nhello\r\n\
                      MSG a 2 _IN.1 0\r\n\r\nHMSG a 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\nHMSG a 1 30 30\r\nNATS/1.0 503 No responders\r\n\r\n\r\n";
        let expected = all(input, input.len()).unwrap();
        assert_eq!(expected.len(), 9);
        assert_eq!(expected[0], ServerOperation::Info(b"{\"a\":1}".to_vec()));
        assert_eq!(expected[4], ServerOperation::Error("Authorization Violation".to_owned()));
        let ServerOperation::Message(message) = &expected[5] else { panic!() };
        assert_eq!((&*message.subject, &message.reply, &message.payload), ("a.b", &None, &payload("hello")));
        let ServerOperation::Message(message) = &expected[7] else { panic!() };
        assert_eq!(
            (&message.reply, &message.payload, message.status()),
            (&Some("r".to_owned()), &payload("hello"), None)
        );
        let ServerOperation::Message(message) = &expected[8] else { panic!() };
        assert_eq!((message.status(), &*message.status_text()), (Some(503), "503 No responders"));
        for piece in 1..input.len() {
            assert_eq!(all(input, piece).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn large_messages_are_skipped_and_huge_ones_refused() {
        let size = PAYLOAD_SIZE_MAX + 1;
        let input = [format!("MSG a 1 {size}\r\n").as_bytes(), &vec![b'x'; size], b"\r\nPING\r\n"].concat();
        let server_operations = all(&input, 10_000).unwrap();
        assert!(matches!(
            &server_operations[..],
            [ServerOperation::Message(Message { payload: None, .. }), ServerOperation::Ping]
        ));
        assert_eq!(all(format!("MSG a 1 {}\r\n", MESSAGE_SIZE_MAX + 1).as_bytes(), 99), Err(NotNats));
        assert_eq!(all(&vec![b'A'; LINE_SIZE_MAX], 99), Err(NotNats));
    }

    #[test]
    fn other_input_is_refused() {
        for input in [
            &b"HTTP/1.1 200 OK\r\n"[..],
            b"\r\n",
            b"MSG\r\n",
            b"MSG a\r\n",
            b"MSG a 1 -1\r\n",
            b"MSG a 1 b c d 1\r\n",
            b"HMSG a 1 9 5\r\n",
            b"MSG \xff 1 1\r\n",
            b"MSG a 1 1\r\nxyz",
            b"MSG a 1 99999999999999999999\r\n",
        ] {
            assert_eq!(all(input, 99), Err(NotNats), "{}", String::from_utf8_lossy(input));
        }
    }

    #[test]
    fn hostile_bytes_never_panic() {
        let words: [&[u8]; 12] = [
            b"MSG ",
            b"HMSG ",
            b"INFO ",
            b"PING",
            b"-ERR ",
            b"\r\n",
            b" ",
            b"a.b",
            b"12",
            b"0",
            b"NATS/1.0 ",
            b"\xff\x00",
        ];
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut input = Vec::new();
            for _ in 0..random.below(40) {
                match random.below(4) {
                    0 => input.push(random.below(256) as u8),
                    _ => input.extend_from_slice(words[random.below(words.len())]),
                }
            }
            let whole = all(&input, input.len().max(1));
            let piece = 1 + random.below(7);
            assert_eq!(all(&input, piece).is_ok(), whole.is_ok(), "seed {seed}");
            if let (Ok(split), Ok(whole)) = (all(&input, piece), whole) {
                assert_eq!(split, whole, "seed {seed}");
            }
        }
    }
}
