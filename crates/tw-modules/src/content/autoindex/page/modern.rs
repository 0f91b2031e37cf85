//! `autoindex_format page`: a list for people, on a telephone as well as on a desk, by day and by night.
//!
//! One document without scripts and without anything to load. A row is a link as high as a finger is wide.

use tw_disk::Entry;
use tw_http::escape::{Escape, push_html};
use tw_http::num;

use super::{Extent, SizeFormat, TimeFormat, cut_text, is_dir, push_time, rounded};

const HEAD: &[u8] = b"<!doctype html>
<html lang=\"en\">
<head>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>";

/// Colours of pages for people, by day and by night.
pub(crate) const COLORS: &[u8] = b":root { --ink: #1c1c1e; --dim: #63636b; --line: #d8d8de; --link: #0a58ca; --paper: #fff; --touch: #f2f4f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --dim: #a0a0aa; --line: #38383e; --link: #8ab4ff; --paper: #151517; --touch: #212126 }
}
";

const STYLE: &[u8] = b"body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.4 system-ui, sans-serif }
h1 { font-size: 1.25rem; margin: .5rem 0 1rem; overflow-wrap: anywhere }
a { color: var(--link); text-decoration: none }
ul { list-style: none; margin: 0; padding: 0; border-top: 1px solid var(--line) }
li a { display: flex; flex-wrap: wrap; gap: 0 1rem; padding: .7rem .25rem; border-bottom: 1px solid var(--line) }
li a:hover, li a:focus { background: var(--touch) }
b { flex: 1 1 20rem; min-width: 60%; font-weight: inherit; overflow-wrap: anywhere }
i { color: var(--dim); font-style: normal; font-size: .875rem; white-space: nowrap; font-variant-numeric: tabular-nums }
i + i { min-width: 5rem; text-align: right }
@media (max-width: 40rem) { b { flex-basis: 100% } i + i { text-align: left } }
</style>
</head>
<body>
<h1>";

/// Writes the page of `uri`.
pub(super) fn push(
    uri: &[u8],
    entries: &[Entry],
    extent: Extent,
    sizes: SizeFormat,
    times: TimeFormat,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(HEAD);
    push_html(uri, out);
    out.extend_from_slice(b"</title>\n<style>\n");
    out.extend_from_slice(COLORS);
    out.extend_from_slice(STYLE);
    push_path(uri, out);
    out.extend_from_slice(b"</h1>\n<ul>\n");
    if uri != b"/" {
        out.extend_from_slice(b"<li><a href=\"../\"><b>..</b></a></li>\n");
    }
    for entry in entries {
        push_row(entry, sizes, times, out);
    }
    out.extend_from_slice(b"</ul>\n");
    push_notice(entries.is_empty(), extent, out);
    out.extend_from_slice(b"</body>\n</html>\n");
}

/// Writes what there is to say below the list.
pub(crate) fn push_notice(is_empty: bool, extent: Extent, out: &mut Vec<u8>) {
    if is_empty {
        out.extend_from_slice(b"<p>Nothing is here.</p>\n");
    }
    if extent == Extent::Truncated {
        out.extend_from_slice(b"<p>");
        out.extend_from_slice(cut_text().as_bytes());
        out.extend_from_slice(b"</p>\n");
    }
}

/// Links to every directory above. They are relative: a proxy in front may have another root.
pub(crate) fn push_path(uri: &[u8], out: &mut Vec<u8>) {
    let parts: Vec<&[u8]> = uri.split_inclusive(|byte| *byte == b'/').collect();
    for (at, part) in parts.iter().enumerate() {
        let up = parts.len() - 1 - at;
        if up == 0 {
            push_html(part, out);
            continue;
        }
        out.extend_from_slice(b"<a href=\"");
        (0..up).for_each(|_| out.extend_from_slice(b"../"));
        out.extend_from_slice(b"\">");
        push_html(part, out);
        out.extend_from_slice(b"</a>");
    }
}

fn push_row(entry: &Entry, sizes: SizeFormat, times: TimeFormat, out: &mut Vec<u8>) {
    let name = entry.name.to_bytes();
    let slash: &[u8] = if is_dir(entry) { b"/" } else { b"" };
    out.extend_from_slice(b"<li><a href=\"");
    Escape::Component.push(name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"\"><b>");
    push_html(name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"</b><i>");
    push_time(entry.meta.mtime_sec, times, out);
    out.extend_from_slice(b"</i><i>");
    if !is_dir(entry) {
        push_size(entry.meta.size, sizes, out);
    }
    out.extend_from_slice(b"</i></a></li>\n");
}

/// Writes a size.
pub(crate) fn push_size(size: u64, format: SizeFormat, out: &mut Vec<u8>) {
    if format == SizeFormat::Exact {
        num::push_decimal(out, size);
        return;
    }
    // `20K` as people write it: `20 KB`.
    let text = rounded(size);
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    out.extend_from_slice(digits.as_bytes());
    out.push(b' ');
    out.extend_from_slice(&text.as_bytes()[digits.len()..]);
    out.push(b'B');
}

#[cfg(test)]
mod tests {
    use super::super::tests::{entry, made};
    use super::super::{ListingFormat, SizeFormat, TimeFormat};
    use tw_disk::FileKind;

    #[test]
    fn rows_and_links() {
        let page = ListingFormat::People { sizes: SizeFormat::Rounded, times: TimeFormat::Utc };
        let entries =
            vec![entry("a<b>.txt", FileKind::File, 20 << 10), entry("d", FileKind::Directory, 4096)];
        let text = made(&page, "/x/<y>/", entries);
        for expected in [
            "<title>/x/&lt;y&gt;/</title>",
            "<h1><a href=\"../../\">/</a><a href=\"../\">x/</a>&lt;y&gt;/</h1>",
            "<ul>\n<li><a href=\"../\"><b>..</b></a></li>\n<li><a href=\"d/\"><b>d/</b><i>06-Nov-1994 08:49</i><i></i></a></li>\n\
             <li><a href=\"a%3Cb%3E.txt\"><b>a&lt;b&gt;.txt</b><i>06-Nov-1994 08:49</i><i>20 KB</i></a></li>\n</ul>",
            "width=device-width",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let top = made(&page, "/", Vec::new());
        assert!(top.contains("<h1>/</h1>\n<ul>\n</ul>\n<p>Nothing is here.</p>"), "{top}");
    }
}
