//! `match` of `stream`: bytes that a health check sends, and what is expected of the answer.

use tw_conf::{ConfError, Node, Setting, Word};
use tw_core::regex::{Caseless, Regex};
use tw_module_support::block::refuse_block;
use tw_stream::health::{Expectation, HealthCriteria};

/// Reads a block.
pub(super) fn read(node: &Node) -> Result<HealthCriteria, ConfError> {
    let mut send = Setting::default();
    let mut expect = Setting::default();
    for line in node.children()? {
        refuse_block(line)?;
        match &*line.name.bytes {
            b"send" => {
                let [text] = line.words()?;
                send.set_once(line, unescaped(line, text)?)?;
            }
            b"expect" => expect.set_with(line, expectation)?,
            b"status" | b"header" | b"body" | b"require" => {
                return Err(line
                    .fail(format!("\"{}\" belongs to a \"match\" of the http block", line.name))
                    .hint("an answer of bytes is tested by \"expect\""));
            }
            _ => {
                return Err(line
                    .fail(format!("unknown test \"{}\" in \"match\"", line.name))
                    .hint("there are \"send\" and \"expect\""));
            }
        }
    }
    let send = send.take().map(Into::into);
    Ok(HealthCriteria { name: node.arg(0)?.lossy().into(), send, expect: expect.take() })
}

/// `expect text`, `expect ~ pattern`
fn expectation(line: &Node) -> Result<Expectation, ConfError> {
    match &*line.args {
        [operator, pattern] if operator.is("~") || operator.is("~*") => {
            let caseless = if operator.is("~") { Caseless::No } else { Caseless::Yes };
            let failed = |error| line.fail(format!("regex compilation failed: {error} in \"{pattern}\""));
            Ok(Expectation::Pattern(Regex::new(&pattern.bytes, caseless).map_err(failed)?))
        }
        [text] => Ok(Expectation::Prefix(unescaped(line, text)?.into())),
        _ => Err(line.invalid_count()),
    }
}

/// The bytes of a text in which `\xHH` stands for one byte.
fn unescaped(line: &Node, text: &Word) -> Result<Vec<u8>, ConfError> {
    let mut bytes = Vec::with_capacity(text.bytes.len());
    let mut rest = &*text.bytes;
    loop {
        match rest {
            [] => return Ok(bytes),
            [b'\\', b'x', digits @ ..] => {
                let byte = digits.split_at_checked(2).and_then(|(digits, after)| Some((hex(digits)?, after)));
                let (byte, after) = byte.ok_or_else(|| line.fail(format!("invalid escape in \"{text}\"")))?;
                bytes.push(byte);
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}

/// The byte that two hexadecimal digits mean.
fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [high, low] = digits else { return None };
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree};

    use super::*;

    fn parse(lines: &str) -> Result<HealthCriteria, String> {
        let mut tree = Tree::default();
        let text = format!("match m {{ {lines} }}");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", text.as_bytes()).unwrap();
        read(&tree.nodes[0]).map_err(|error| error.message)
    }

    #[test]
    fn escapes_become_bytes() {
        for (line, expected) in [
            ("send hello;", &b"hello"[..]),
            ("send \"GET / HTTP/1.0\\r\\n\\r\\n\";", b"GET / HTTP/1.0\r\n\r\n"),
            ("send \\x00\\xfF\\x41;", b"\x00\xffA"),
            ("send 'a\\.b';", b"a\\.b"),
        ] {
            assert_eq!(parse(line).unwrap().send.as_deref(), Some(expected), "{line}");
        }
        let expected = parse("expect \\x80ok;").unwrap().expect;
        assert!(matches!(expected, Some(Expectation::Prefix(bytes)) if *bytes == *b"\x80ok"));
        assert!(matches!(parse("expect ~ ^220;").unwrap().expect, Some(Expectation::Pattern(_))));
        assert!(matches!(parse("").unwrap(), HealthCriteria { send: None, expect: None, .. }));
    }

    #[test]
    fn mistakes() {
        for (line, error) in [
            ("send;", "invalid number of arguments in \"send\" directive"),
            ("send a b;", "invalid number of arguments in \"send\" directive"),
            ("send a; send b;", "\"send\" directive is duplicate"),
            ("send \\x4;", "invalid escape in \"\\x4\""),
            ("send \\xgg;", "invalid escape in \"\\xgg\""),
            ("expect;", "invalid number of arguments in \"expect\" directive"),
            ("expect = a;", "invalid number of arguments in \"expect\" directive"),
            ("expect a; expect b;", "\"expect\" directive is duplicate"),
            ("status 200;", "\"status\" belongs to a \"match\" of the http block"),
            ("sent a;", "unknown test \"sent\" in \"match\""),
            ("send a { }", "unexpected \"{\""),
        ] {
            assert_eq!(parse(line).err().as_deref(), Some(error), "{line}");
        }
        assert!(parse("expect ~ (a;").err().unwrap().starts_with("regex compilation failed: "));
    }
}
