//! Formats of a directory listing: HTML, JSON and XML, line for line as nginx writes them; and a page for people, which
//! nginx does not have.

use tw_disk::{Entry, FileKind, LIST_MAX};
use tw_http::escape::{Escape, push_html};
use tw_http::{date, num};
use tw_module_support::date_format::push_iso8601;

pub(crate) mod modern;

/// Columns of a name in the HTML page.
const NAME_COLUMNS: usize = 50;

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// Format of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListingFormat {
    Html {
        sizes: SizeFormat,
        times: TimeFormat,
    },
    /// For people with any screen.
    People {
        sizes: SizeFormat,
        times: TimeFormat,
    },
    Json,
    Jsonp(Box<[u8]>),
    Xml,
}

/// Completeness of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// As many names as are read at most; the directory has more.
    Truncated,
}

/// Format of sizes in the HTML page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeFormat {
    Exact,
    Rounded,
}

/// In which time zone the HTML page shows times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeFormat {
    Utc,
    Local,
}

impl ListingFormat {
    /// Media type and charset.
    pub(crate) fn content_type(&self) -> (&'static str, &'static str) {
        match self {
            Self::Html { .. } | Self::People { .. } => ("text/html", ""),
            Self::Json => ("application/json", ""),
            Self::Jsonp(_) => ("application/javascript", ""),
            Self::Xml => ("text/xml", "utf-8"),
        }
    }

    /// The page of `uri`: directories first, each half in the order of its bytes, without names that begin with a dot.
    /// Sorts and formats everything at once: not for a loop.
    // DIFF(nginx): a list that was cut says so.
    pub(crate) fn make(&self, uri: &[u8], mut entries: Vec<Entry>, extent: Extent) -> Vec<u8> {
        entries.retain(|entry| !entry.name.to_bytes().starts_with(b"."));
        entries.sort_unstable_by(|a, b| (!is_dir(a), &a.name).cmp(&(!is_dir(b), &b.name)));
        let mut out = Vec::with_capacity(256 + 160 * entries.len());
        match self {
            Self::Html { sizes, times } => push_page(uri, &entries, extent, *sizes, *times, &mut out),
            Self::People { sizes, times } => modern::push(uri, &entries, extent, *sizes, *times, &mut out),
            Self::Json => push_json(&entries, extent, &mut out),
            Self::Jsonp(callback) => {
                out.extend_from_slice(b"/* callback */\r\n");
                out.extend_from_slice(callback);
                out.push(b'(');
                push_json(&entries, extent, &mut out);
                out.extend_from_slice(b");");
            }
            Self::Xml => push_xml(&entries, extent, &mut out),
        }
        out
    }
}

/// Returns true for a directory.
pub(crate) fn is_dir(entry: &Entry) -> bool {
    entry.meta.kind == FileKind::Directory
}

fn push_page(
    uri: &[u8],
    entries: &[Entry],
    extent: Extent,
    sizes: SizeFormat,
    times: TimeFormat,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    push_html(uri, out);
    out.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    push_html(uri, out);
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        let name = entry.name.to_bytes();
        out.extend_from_slice(b"<a href=\"");
        Escape::Component.push(name, out);
        out.extend_from_slice(if is_dir(entry) { b"/\">" } else { b"\">" });
        push_label(name, is_dir(entry), out);
        out.push(b' ');
        push_time(entry.meta.mtime_sec, times, out);
        out.push(b' ');
        match (sizes, is_dir(entry)) {
            (SizeFormat::Exact, true) => push_right(b"-", 19, out),
            (SizeFormat::Exact, false) => push_right(entry.meta.size.to_string().as_bytes(), 19, out),
            (SizeFormat::Rounded, true) => push_right(b"-", 7, out),
            (SizeFormat::Rounded, false) => push_right(rounded(entry.meta.size).as_bytes(), 7, out),
        }
        out.extend_from_slice(b"\r\n");
    }
    if extent == Extent::Truncated {
        out.extend_from_slice(cut_text().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
}

/// Notice below a listing that was cut.
fn cut_text() -> String {
    format!("This list is not complete: the directory has more than {LIST_MAX} entries.")
}

/// Columns of a name, and the bytes that are left of it in `max` columns with a sign that it was cut.
// DIFF(nginx): a name that is UTF-8 is counted and cut in characters whatever the charset of the location.
pub(crate) fn measure(name: &[u8], max: usize) -> (usize, usize) {
    let remaining = max.saturating_sub(3);
    match std::str::from_utf8(name) {
        Ok(text) => {
            (text.chars().count(), text.char_indices().nth(remaining).map_or(name.len(), |(at, _)| at))
        }
        Err(_) => (name.len(), remaining.min(name.len())),
    }
}

/// Writes a name in its columns and the end of its link; one that is too long is cut.
fn push_label(name: &[u8], is_dir: bool, out: &mut Vec<u8>) {
    let (columns, cut) = measure(name, NAME_COLUMNS);
    if columns > NAME_COLUMNS {
        push_html(&name[..cut], out);
        out.extend_from_slice(b"..&gt;</a>");
        return;
    }
    push_html(name, out);
    let slash = usize::from(is_dir && columns < NAME_COLUMNS);
    out.extend_from_slice(&b"/"[..slash]);
    out.extend_from_slice(b"</a>");
    out.resize(out.len() + NAME_COLUMNS - columns - slash, b' ');
}

/// Writes `06-Nov-1994 08:49`. `unix_s`: seconds since 1970.
fn push_time(unix_s: i64, times: TimeFormat, out: &mut Vec<u8>) {
    let utc;
    let local;
    // Both formats have the same shape: `06 Nov 1994 08:49`, `06/Nov/1994:08:49`.
    let text = match times {
        TimeFormat::Utc => {
            utc = date::format(unix_s);
            &utc["Sun, ".len()..]
        }
        TimeFormat::Local => {
            // DIFF(nginx): the offset is that of the time shown, not of the time of the request.
            local = tw_log::time::time_local(unix_s);
            &local[..]
        }
    };
    for (part, separator) in [(0..2, b'-'), (3..6, b'-'), (7..11, b' ')] {
        out.extend_from_slice(&text[part]);
        out.push(separator);
    }
    out.extend_from_slice(&text[12..17]);
}

fn push_right(text: &[u8], width: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + width.saturating_sub(text.len()), b' ');
    out.extend_from_slice(text);
}

/// A size with its unit; bytes up to four digits have none, and leave its column free.
fn rounded(size: u64) -> String {
    let in_units = |unit: u64| size / unit + u64::from(size % unit >= unit / 2);
    match size {
        GB.. => format!("{}G", in_units(GB)),
        MB.. => format!("{}M", in_units(MB)),
        10_000.. => format!("{}K", in_units(KB)),
        _ => size.to_string(),
    }
}

fn push_json(entries: &[Entry], extent: Extent, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, entry) in entries.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\r\n{ \"name\":\"" } else { b",\r\n{ \"name\":\"" });
        push_json_text(entry.name.to_bytes(), out);
        out.extend_from_slice(b"\", \"type\":\"");
        out.extend_from_slice(type_of(entry).as_bytes());
        out.extend_from_slice(b"\", \"mtime\":\"");
        out.extend_from_slice(&date::format(entry.meta.mtime_sec));
        out.push(b'"');
        if entry.meta.kind == FileKind::File {
            out.extend_from_slice(b", \"size\":");
            num::push_decimal(out, entry.meta.size);
        }
        out.extend_from_slice(b" }");
    }
    if extent == Extent::Truncated {
        // The mark is an entry without a name: readers that check types skip it, and others notice it.
        let end = if entries.is_empty() { "\r\n" } else { ",\r\n" };
        out.extend_from_slice(format!("{end}{{ \"type\":\"truncated\", \"limit\":{LIST_MAX} }}").as_bytes());
    }
    out.extend_from_slice(b"\r\n]");
}

fn type_of(entry: &Entry) -> &'static str {
    match entry.meta.kind {
        FileKind::Directory => "directory",
        FileKind::File => "file",
        FileKind::Symlink | FileKind::Other => "other",
    }
}

/// RFC 8259 section 7. Bytes that are not UTF-8 stay as they are.
fn push_json_text(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04X}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

fn push_xml(entries: &[Entry], extent: Extent, out: &mut Vec<u8>) {
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for entry in entries {
        let tag = type_of(entry).as_bytes();
        out.push(b'<');
        out.extend_from_slice(tag);
        out.extend_from_slice(b" mtime=\"");
        push_iso8601(entry.meta.mtime_sec, out);
        if entry.meta.kind == FileKind::File {
            out.extend_from_slice(b"\" size=\"");
            num::push_decimal(out, entry.meta.size);
        }
        out.extend_from_slice(b"\">");
        push_html(entry.name.to_bytes(), out);
        out.extend_from_slice(b"</");
        out.extend_from_slice(tag);
        out.extend_from_slice(b">\r\n");
    }
    if extent == Extent::Truncated {
        out.extend_from_slice(format!("<truncated limit=\"{LIST_MAX}\"/>\r\n").as_bytes());
    }
    out.extend_from_slice(b"</list>\r\n");
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::CString;

    use tw_disk::FileMeta;

    use super::*;

    pub(crate) fn entry(name: &str, kind: FileKind, size: u64) -> Entry {
        let meta = FileMeta {
            dev: 1,
            ino: 1,
            size,
            mtime_sec: 784_111_777,
            mtime_nsec: 0,
            ctime_sec: 0,
            ctime_nsec: 0,
            mode: 0o644,
            kind,
            nlink: 1,
            uid: 0,
            gid: 0,
            blocks: 0,
        };
        Entry { name: CString::new(name).unwrap(), meta }
    }

    pub(super) fn made(page: &ListingFormat, uri: &str, entries: Vec<Entry>) -> String {
        String::from_utf8(page.make(uri.as_bytes(), entries, Extent::Whole)).unwrap()
    }

    fn exact() -> ListingFormat {
        ListingFormat::Html { sizes: SizeFormat::Exact, times: TimeFormat::Utc }
    }

    #[test]
    fn the_html_page() {
        let entries = vec![
            entry("b & c.txt", FileKind::File, 1234),
            entry(".hidden", FileKind::File, 1),
            entry("a", FileKind::File, 0),
            entry("z", FileKind::Directory, 4096),
            entry("B", FileKind::Directory, 4096),
            entry("pipe", FileKind::Other, 0),
        ];
        let expected = "<html>\r\n<head><title>Index of /x&lt;/</title></head>\r\n<body>\r\n\
            <h1>Index of /x&lt;/</h1><hr><pre><a href=\"../\">../</a>\r\n\
            <a href=\"B/\">B/</a>                                                 06-Nov-1994 08:49                   -\r\n\
            <a href=\"z/\">z/</a>                                                 06-Nov-1994 08:49                   -\r\n\
            <a href=\"a\">a</a>                                                  06-Nov-1994 08:49                   0\r\n\
            <a href=\"b%20%26%20c.txt\">b &amp; c.txt</a>                                          06-Nov-1994 08:49                1234\r\n\
            <a href=\"pipe\">pipe</a>                                               06-Nov-1994 08:49                   0\r\n\
            </pre><hr></body>\r\n</html>\r\n";
        assert_eq!(made(&exact(), "/x</", entries), expected);
    }

    #[test]
    fn cut_listing_has_a_notice() {
        let cut = |page: &ListingFormat, entries| {
            String::from_utf8(page.make(b"/", entries, Extent::Truncated)).unwrap()
        };
        let one = || vec![entry("a", FileKind::Directory, 0)];
        for page in [exact(), ListingFormat::People { sizes: SizeFormat::Exact, times: TimeFormat::Utc }] {
            let notice = "This list is not complete: the directory has more than 100000 entries.";
            assert!(
                cut(&page, one()).contains(notice) && !made(&page, "/", one()).contains(notice),
                "{page:?}"
            );
        }
        let end = "08:49:37 GMT\" },\r\n{ \"type\":\"truncated\", \"limit\":100000 }\r\n]";
        assert!(cut(&ListingFormat::Json, one()).ends_with(end), "{}", cut(&ListingFormat::Json, one()));
        assert_eq!(
            cut(&ListingFormat::Json, Vec::new()),
            "[\r\n{ \"type\":\"truncated\", \"limit\":100000 }\r\n]"
        );
        assert!(
            cut(&ListingFormat::Xml, one())
                .ends_with("</directory>\r\n<truncated limit=\"100000\"/>\r\n</list>\r\n")
        );
    }

    #[test]
    fn long_names_are_cut() {
        let a = |count| "a".repeat(count);
        let u = |count| "\u{e4}".repeat(count);
        let table = [
            (a(49), FileKind::File, format!("{}</a>  ", a(49))),
            (a(49), FileKind::Directory, format!("{}/</a> ", a(49))),
            (a(50), FileKind::File, format!("{}</a> ", a(50))),
            (a(50), FileKind::Directory, format!("{}</a> ", a(50))),
            (a(51), FileKind::File, format!("{}..&gt;</a> ", a(47))),
            (u(50), FileKind::File, format!("{}</a> ", u(50))),
            (u(51), FileKind::File, format!("{}..&gt;</a> ", u(47))),
            (format!("{}<{}", a(46), a(9)), FileKind::File, format!("{}&lt;..&gt;</a> ", a(46))),
        ];
        for (name, kind, expected) in table {
            let page = made(&exact(), "/", vec![entry(&name, kind, 0)]);
            assert!(page.contains(&format!("\">{expected}06-Nov")), "{name}: {page}");
        }
        let mut out = Vec::new();
        push_label(&[0xff; 60], false, &mut out);
        assert_eq!(out, [&[0xff; 47][..], b"..&gt;</a>"].concat());
    }

    #[test]
    fn sizes_are_rounded() {
        let table = [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10K"),
            (10_751, "10K"),
            (10_752, "11K"),
            (MB - 1, "1024K"),
            (MB, "1M"),
            (MB + MB / 2, "2M"),
            (GB - 1, "1024M"),
            (GB, "1G"),
            (5 * GB + GB / 2 - 1, "5G"),
        ];
        for (size, expected) in table {
            assert_eq!(rounded(size), expected, "{size}");
        }
        let page = ListingFormat::Html { sizes: SizeFormat::Rounded, times: TimeFormat::Utc };
        let page = made(
            &page,
            "/",
            vec![
                entry("d", FileKind::Directory, 0),
                entry("f", FileKind::File, 7),
                entry("g", FileKind::File, 20 * KB),
            ],
        );
        for expected in ["08:49       -\r\n", "08:49       7\r\n", "08:49     20K\r\n"] {
            assert!(page.contains(expected), "{page}");
        }
    }

    #[test]
    fn json_and_xml() {
        let entries = || {
            vec![
                entry("a\"\\\u{1}\n<", FileKind::File, 5),
                entry("d", FileKind::Directory, 4096),
                entry("o", FileKind::Symlink, 3),
            ]
        };
        let json = "[\r\n\
            { \"name\":\"d\", \"type\":\"directory\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\" },\r\n\
            { \"name\":\"a\\\"\\\\\\u0001\\n<\", \"type\":\"file\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\", \"size\":5 },\r\n\
            { \"name\":\"o\", \"type\":\"other\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\" }\r\n]";
        let jsonp = |text: &str| format!("/* callback */\r\nf.g({text});");
        let xml = "<?xml version=\"1.0\"?>\r\n<list>\r\n\
            <directory mtime=\"1994-11-06T08:49:37Z\">d</directory>\r\n\
            <file mtime=\"1994-11-06T08:49:37Z\" size=\"5\">a&quot;\\\u{1}\n&lt;</file>\r\n\
            <other mtime=\"1994-11-06T08:49:37Z\">o</other>\r\n</list>\r\n";
        let callback = ListingFormat::Jsonp(b"f.g".as_slice().into());
        for (page, expected) in [
            (ListingFormat::Json, json.to_owned()),
            (callback.clone(), jsonp(json)),
            (ListingFormat::Xml, xml.to_owned()),
        ] {
            assert_eq!(made(&page, "/", entries()), expected, "{page:?}");
        }
        assert_eq!(made(&ListingFormat::Json, "/", Vec::new()), "[\r\n]");
        assert_eq!(made(&callback, "/", Vec::new()), jsonp("[\r\n]"));
    }
}
