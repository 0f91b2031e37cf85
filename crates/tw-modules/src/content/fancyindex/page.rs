//! The page: one document without scripts, a table whose heads are links that sort it.
//!
//! `id="list"` and the classes `link`, `size` and `date` are those of the module, for style sheets made for it.

use std::sync::Arc;

use tw_core::regex::Match;
use tw_disk::{Entry, FileKind};
use tw_http::escape::{Escape, push_html};
use tw_module_support::date_format;

use super::Look;
use super::sort::{Column, Order, Sorting};
use crate::content::autoindex::{Extent, is_dir, measure, modern};

const HEAD: &[u8] = b"<!doctype html>
<html lang=\"en\">
<head>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>Index of ";

const STYLE: &[u8] =
    b"body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.4 system-ui, sans-serif }
h1 { font-size: 1.25rem; margin: .5rem 0 1rem; overflow-wrap: anywhere }
a { color: var(--link); text-decoration: none }
h1 a:hover, h1 a:focus { text-decoration: underline }
table { width: 100%; border-collapse: collapse }
th { text-align: left; font-size: .875rem; border-bottom: 2px solid var(--line) }
td { border-bottom: 1px solid var(--line) }
th a, td.link a { display: block; padding: .6rem .25rem }
td.link { overflow-wrap: anywhere }
td.size, td.date { padding: .6rem .25rem .6rem 1rem; color: var(--dim); font-size: .875rem;
  font-variant-numeric: tabular-nums; white-space: nowrap }
td.size, th.size { text-align: right }
th.date a { padding-left: 1rem }
td.date span { white-space: nowrap }
tbody tr:hover, tbody tr:focus-within { background: var(--touch) }
@media (max-width: 40rem) { td.date { white-space: normal } td.size, td.date, th.date a { padding-left: .5rem } }
";

/// Page of one request.
pub(super) struct FancyPage {
    pub(super) look: Arc<Look>,
    /// Path of the directory.
    pub(super) uri: Vec<u8>,
    /// Order that the request names; links to other directories keep it.
    pub(super) asked: Option<Sorting>,
    /// Order otherwise.
    pub(super) default: Sorting,
    /// True if a header that is not built in precedes the page.
    pub(super) has_header: bool,
    /// True if a footer that is not built in follows it.
    pub(super) has_footer: bool,
}

impl FancyPage {
    /// Writes the page. Sorts and formats everything at once: not for a loop.
    pub(super) fn make(&self, mut entries: Vec<Entry>, extent: Extent) -> Vec<u8> {
        let look = &*self.look;
        entries.retain(|entry| look.shows(entry));
        let sorting = self.asked.unwrap_or(self.default);
        sorting.sort(&mut entries, look.case_sensitive, look.directories_first);
        let mut out = Vec::with_capacity(4096 + 256 * entries.len());
        self.push_begin(&mut out);
        push_heads(sorting, &mut out);
        let has_parent = self.uri != b"/" && !look.hide_parent_dir;
        if has_parent {
            out.extend_from_slice(b"<tr><td class=\"link\"><a href=\"../");
            self.push_order(&mut out);
            let rest =
                b"\">Parent directory/</a></td><td class=\"size\">-</td><td class=\"date\">-</td></tr>\r\n";
            out.extend_from_slice(rest);
        }
        for entry in &entries {
            self.push_row(entry, &mut out);
        }
        out.extend_from_slice(b"</tbody>\r\n</table>\r\n");
        modern::push_notice(entries.is_empty(), extent, &mut out);
        if !self.has_footer {
            out.extend_from_slice(b"</main>\r\n</body>\r\n</html>\r\n");
        }
        out
    }

    /// Writes the built-in header, and the path.
    fn push_begin(&self, out: &mut Vec<u8>) {
        if self.has_header {
            if self.look.show_path {
                push_html(&self.uri, out);
                out.extend_from_slice(b"</h1>\r\n");
            }
            return;
        }
        out.extend_from_slice(HEAD);
        push_html(&self.uri, out);
        out.extend_from_slice(b"</title>\n<style>\n");
        out.extend_from_slice(modern::COLORS);
        out.extend_from_slice(STYLE);
        out.extend_from_slice(b"</style>\n");
        if !self.look.css_href.is_empty() {
            out.extend_from_slice(b"<link rel=\"stylesheet\" href=\"");
            push_html(&self.look.css_href, out);
            out.extend_from_slice(b"\">\n");
        }
        out.extend_from_slice(b"</head>\n<body>\n<main>\n");
        if self.look.show_path {
            out.extend_from_slice(b"<h1>Index of ");
            modern::push_path(&self.uri, out);
            out.extend_from_slice(b"</h1>\n");
        }
    }

    /// Writes the order that the request names, behind a link to a directory.
    fn push_order(&self, out: &mut Vec<u8>) {
        if let Some(asked) = self.asked {
            asked.push_args(out);
        }
    }

    fn push_row(&self, entry: &Entry, out: &mut Vec<u8>) {
        let look = &*self.look;
        let name = entry.name.to_bytes();
        out.extend_from_slice(b"<tr><td class=\"link\"><a href=\"");
        Escape::Component.push(name, out);
        if is_dir(entry) {
            out.push(b'/');
            self.push_order(out);
        }
        out.extend_from_slice(b"\" title=\"");
        push_html(name, out);
        out.extend_from_slice(b"\">");
        match look.name_length.map(|max| (max, measure(name, max))) {
            Some((max, (columns, cut))) if columns > max => {
                push_html(&name[..cut], out);
                out.extend_from_slice(b"..&gt;");
            }
            _ => {
                push_html(name, out);
                out.extend_from_slice(if is_dir(entry) { b"/" } else { b"" });
            }
        }
        out.extend_from_slice(b"</a></td><td class=\"size\">");
        if is_dir(entry) {
            out.push(b'-')
        } else {
            modern::push_size(entry.meta.size, look.sizes, out)
        }
        out.extend_from_slice(b"</td><td class=\"date\">");
        let mut time = Vec::new();
        if date_format::push(&look.time_format, entry.meta.mtime_sec, look.zone, &mut time) {
            push_words(&time, out);
        }
        out.extend_from_slice(b"</td></tr>\r\n");
    }
}

/// Writes a time that is broken between its words only.
fn push_words(time: &[u8], out: &mut Vec<u8>) {
    for (at, word) in time.split(|byte| *byte == b' ').enumerate() {
        out.extend_from_slice(if at == 0 { b"<span>" } else { b" <span>" });
        push_html(word, out);
        out.extend_from_slice(b"</span>");
    }
}

impl Look {
    /// Returns true if an entry is listed. A name for which an expression takes too long is not.
    fn shows(&self, entry: &Entry) -> bool {
        let name = entry.name.to_bytes();
        if name.starts_with(b".") && !self.show_dotfiles {
            return false;
        }
        if self.hide_symlinks && entry.meta.kind == FileKind::Symlink {
            return false;
        }
        self.ignore.iter().all(|regex| regex.is_match(name) == Ok(Match::No))
    }
}

/// Writes the begin of the table with its heads: links that sort by a column, or the other way round.
fn push_heads(sorting: Sorting, out: &mut Vec<u8>) {
    out.extend_from_slice(b"<table id=\"list\">\r\n<thead>\r\n<tr>");
    for (column, _) in Column::ALL {
        let (class, title) = match column {
            Column::Name => ("link", "Name"),
            Column::Size => ("size", "Size"),
            Column::Date => ("date", "Date"),
        };
        let is_sorted = column == sorting.by;
        let (aria, arrow, order) = match (is_sorted, sorting.order) {
            (false, _) => ("", "", Order::Ascending),
            (true, Order::Ascending) => (" aria-sort=\"ascending\"", " &uarr;", Order::Descending),
            (true, Order::Descending) => (" aria-sort=\"descending\"", " &darr;", Order::Ascending),
        };
        out.extend_from_slice(format!("<th scope=\"col\" class=\"{class}\"{aria}><a href=\"").as_bytes());
        Sorting { by: column, order }.push_args(out);
        out.extend_from_slice(
            format!("\">{title}<span aria-hidden=\"true\">{arrow}</span></a></th>").as_bytes(),
        );
    }
    out.extend_from_slice(b"</tr>\r\n</thead>\r\n<tbody>\r\n");
}

#[cfg(test)]
mod tests {
    use tw_core::regex::{Caseless, Regex};
    use tw_module_support::date_format::DateZone;

    use super::*;
    use crate::content::autoindex::{SizeFormat, entry};

    fn look() -> Look {
        Look {
            case_sensitive: true,
            directories_first: true,
            css_href: [].into(),
            sizes: SizeFormat::Rounded,
            name_length: None,
            show_path: true,
            show_dotfiles: false,
            ignore: [].into(),
            hide_symlinks: false,
            hide_parent_dir: false,
            zone: DateZone::Gmt,
            time_format: (*super::super::TIME_FORMAT).into(),
        }
    }

    fn page(look: Look) -> FancyPage {
        let default = Sorting { by: Column::Name, order: Order::Ascending };
        FancyPage {
            look: Arc::new(look),
            uri: b"/x/<y>/".to_vec(),
            asked: None,
            default,
            has_header: false,
            has_footer: false,
        }
    }

    fn text(page: &FancyPage, entries: Vec<Entry>) -> String {
        String::from_utf8(page.make(entries, Extent::Whole)).unwrap()
    }

    #[test]
    fn rows_links_and_heads() {
        let entries =
            vec![entry("a\"<b>.txt", FileKind::File, 20 << 10), entry("d", FileKind::Directory, 4096)];
        let whole = text(&page(look()), entries.clone());
        for expected in [
            "<title>Index of /x/&lt;y&gt;/</title>",
            "<h1>Index of <a href=\"../../\">/</a><a href=\"../\">x/</a>&lt;y&gt;/</h1>",
            "<th scope=\"col\" class=\"link\" aria-sort=\"ascending\"><a href=\"?C=N&amp;O=D\">Name<span aria-hidden=\"true\"> &uarr;</span></a></th>",
            "<th scope=\"col\" class=\"size\"><a href=\"?C=S&amp;O=A\">",
            "<tbody>\r\n<tr><td class=\"link\"><a href=\"../\">Parent directory/</a></td>",
            "<tr><td class=\"link\"><a href=\"d/\" title=\"d\">d/</a></td><td class=\"size\">-</td><td class=\"date\"><span>1994-Nov-06</span> <span>08:49</span></td></tr>\r\n\
             <tr><td class=\"link\"><a href=\"a%22%3Cb%3E.txt\" title=\"a&quot;&lt;b&gt;.txt\">a&quot;&lt;b&gt;.txt</a></td><td class=\"size\">20 KB</td>",
            "</table>\r\n</main>\r\n</body>\r\n</html>\r\n",
        ] {
            assert!(whole.contains(expected), "{expected}\n{whole}");
        }
        let asked = Some(Sorting { by: Column::Size, order: Order::Descending });
        let sorted = text(&FancyPage { asked, ..page(look()) }, entries);
        for expected in [
            "href=\"../?C=S&amp;O=D\"",
            "href=\"d/?C=S&amp;O=D\"",
            "aria-sort=\"descending\"><a href=\"?C=S&amp;O=A\">",
        ] {
            assert!(sorted.contains(expected), "{expected}\n{sorted}");
        }
    }

    #[test]
    fn own_header_and_footer_replace_built_in_ones() {
        let parts = FancyPage { has_header: true, has_footer: true, ..page(look()) };
        let whole = text(&parts, Vec::new());
        assert!(whole.starts_with("/x/&lt;y&gt;/</h1>\r\n<table id=\"list\">"), "{whole}");
        assert!(whole.ends_with("</table>\r\n<p>Nothing is here.</p>\n"), "{whole}");
        let parts = FancyPage { look: Arc::new(Look { show_path: false, ..look() }), ..parts };
        assert!(text(&parts, Vec::new()).starts_with("<table id=\"list\">"));
    }

    #[test]
    fn names_are_hidden_or_cut() {
        let entries = || {
            let long = "\u{e4}".repeat(12);
            let names = [".dot", "a.bak", "link", &long];
            let kinds = [FileKind::File, FileKind::File, FileKind::Symlink, FileKind::File];
            names.iter().zip(kinds).map(|(name, kind)| entry(name, kind, 1)).collect::<Vec<_>>()
        };
        let ignore = Arc::new(Regex::new(b"\\.bak$", Caseless::No).unwrap());
        let hiding = Look {
            show_dotfiles: true,
            ignore: [ignore].into(),
            hide_symlinks: true,
            hide_parent_dir: true,
            name_length: Some(10),
            css_href: (*b"/\"a.css").into(),
            ..look()
        };
        let whole = text(&page(hiding), entries());
        for (part, is_there) in [
            ("href=\".dot\"", true),
            ("a.bak", false),
            ("href=\"link\"", false),
            ("Parent directory", false),
            (">\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}..&gt;</a>", true),
            ("<link rel=\"stylesheet\" href=\"/&quot;a.css\">", true),
        ] {
            assert_eq!(whole.contains(part), is_there, "{part}\n{whole}");
        }
        let whole = text(&page(look()), entries());
        assert!(
            !whole.contains(".dot") && whole.contains("href=\"link\"") && whole.contains("a.bak"),
            "{whole}"
        );
    }
}
