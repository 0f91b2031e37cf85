//! `tailwater cache export`: stored responses as a tar archive, or as a list.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use tw_cache::Key;

use super::body::{BodyRead, read_body};
use super::directory::{DAMAGED, FAILED, GOOD, directories, lacks_device, now, purges};
use super::list::{LeftOut, Listed, list};
use super::pace::Pace;
use super::stored::{StoredPlace, StoredResponse};
use super::tar::Tar;
use super::text;
use crate::cli::{CacheExportOptions, ExportTarget};
use crate::output::console::Console;

/// Bytes of a part of a path, of which file systems take no more than 255.
const PART_MAX: usize = 200;
/// Largest body that is read into memory; a larger one is read twice.
const BODY_MAX: u64 = 4 << 20;

/// Destination of what is exported.
enum Output {
    Tar(Tar<BufWriter<Box<dyn Write>>>),
    Text(BufWriter<Box<dyn Write>>),
    Json(BufWriter<Box<dyn Write>>),
}

/// Exports what the directories have.
pub(super) fn run(options: &CacheExportOptions, console: &Console) -> u8 {
    let mut temporary = None;
    let mut are_missing = false;
    let opened = match &options.target {
        ExportTarget::List if options.is_json => Ok(Output::Json(BufWriter::new(Box::new(io::stdout())))),
        ExportTarget::List => Ok(Output::Text(BufWriter::new(Box::new(io::stdout())))),
        ExportTarget::Tar(name) => {
            let path = directories(std::slice::from_ref(name)).next().unwrap_or_default();
            open_tar(&path, &mut temporary)
        }
    };
    let result = opened.and_then(|mut output| {
        let mut left_out = LeftOut::default();
        for dir in directories(&options.directories) {
            let purges = purges(&dir).unwrap_or_else(|why| {
                console.plain(format_args!("{}: its purges cannot be read: {why}", dir.display()));
                left_out.damaged += 1;
                None
            });
            let pace = Pace::new(options.rate);
            let mut damaged = 0;
            let found_left_out = list(&dir, &options.key_prefix, purges.as_ref(), &mut |listed| {
                damaged += u64::from(!output.add(&dir, &listed, &pace)?);
                Ok(())
            })?;
            are_missing |= lacks_device(&dir, console);
            left_out.damaged += found_left_out.damaged + damaged;
            left_out.purged += found_left_out.purged;
        }
        output.finish()?;
        if let Some((from, to)) = &temporary {
            fs::rename(from, to)?;
        }
        Ok(left_out)
    });
    match result {
        Ok(left_out) => {
            for (count, why) in [(left_out.damaged, "damaged"), (left_out.purged, "purged")] {
                if count > 0 {
                    console.plain(format_args!("{} {why} responses are left out", text::count(count)));
                }
            }
            match left_out.damaged {
                _ if are_missing => FAILED,
                0 => GOOD,
                _ => DAMAGED,
            }
        }
        // The reader has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => GOOD,
        Err(error) => {
            if let Some((path, _)) = &temporary {
                let _ = fs::remove_file(path);
            }
            console.plain(format_args!("{error}"));
            FAILED
        }
    }
}

/// Opens the archive, under a temporary name until it is complete.
fn open_tar(path: &Path, temporary: &mut Option<(PathBuf, PathBuf)>) -> io::Result<Output> {
    let out: Box<dyn Write> = match path.as_os_str() == "-" {
        true if io::stdout().is_terminal() => {
            return Err(io::Error::other("an archive is not written to a terminal"));
        }
        true => Box::new(io::stdout()),
        // A device or a pipe has no other name.
        false if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) => Box::new(File::create(path)?),
        false => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}", std::process::id()));
            let file = File::create_new(&name).map_err(|error| super::walk::named(path, &error))?;
            *temporary = Some((name.into(), path.to_owned()));
            Box::new(file)
        }
    };
    Ok(Output::Tar(Tar::new(BufWriter::new(out))))
}

impl Output {
    /// Adds a response. Returns false if its body is damaged; it is left out then.
    fn add(&mut self, dir: &Path, listed: &Listed<'_>, pace: &Pace) -> io::Result<bool> {
        match self {
            Output::Tar(tar) => add_to_tar(tar, listed, pace),
            Output::Text(out) => writeln!(out, "{}", line(listed)).map(|()| true),
            Output::Json(out) => writeln!(out, "{}", json_line(dir, listed)).map(|()| true),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Output::Tar(tar) => tar.finish()?.flush(),
            Output::Text(mut out) | Output::Json(mut out) => out.flush(),
        }
    }
}

fn add_to_tar<W: Write>(tar: &mut Tar<W>, listed: &Listed<'_>, pace: &Pace) -> io::Result<bool> {
    let stored = listed.stored;
    let head = listed.head;
    let meta = &head.meta;
    let name = name(&meta.key_text, stored.key, meta.key);
    let len = meta.body_len.unwrap_or(0);
    let mtime = meta.lifetime.responded;
    let mut body = Vec::new();
    let read = read_body(stored, head, pace, &mut |block| {
        if len <= BODY_MAX {
            body.extend_from_slice(block);
        }
        Ok(())
    });
    let read = read.map_err(|error| super::walk::named(&stored.path, &error))?;
    if let BodyRead::Damaged { .. } = read {
        return Ok(false);
    }
    let fields = http_head(listed);
    tar.begin(&format!("{name}.head"), fields.len() as u64, mtime)?;
    tar.write(&fields)?;
    tar.begin(&format!("{name}.body"), len, mtime)?;
    if len <= BODY_MAX {
        tar.write(&body)?;
        return Ok(true);
    }
    match read_body(stored, head, pace, &mut |block| tar.write(block))? {
        BodyRead::Damaged { .. } => Err(io::Error::other(format!("{} was changed", stored.path.display()))),
        BodyRead::Whole | BodyRead::Unsummed => Ok(true),
    }
}

/// Head as it would be sent, without what depends on the request.
fn http_head(listed: &Listed<'_>) -> Vec<u8> {
    let meta = &listed.head.meta;
    let mut head = b"HTTP/1.1 ".to_vec();
    match (meta.status_line.is_empty(), tw_http::status::line(meta.status)) {
        (false, _) => head.extend_from_slice(&meta.status_line),
        (true, Some(line)) => head.extend_from_slice(line.as_bytes()),
        (true, None) => head.extend_from_slice(meta.status.to_string().as_bytes()),
    }
    head.extend_from_slice(b"\r\n");
    for (name, value) in meta.fields.iter() {
        head.extend_from_slice(name);
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Path of a response in an archive, without `.head` or `.body`: its key, in which nothing leads out of the directory and no file
/// has the name of a directory.
fn name(text: &[u8], stored: Key, key: Key) -> String {
    let mut path = String::new();
    let parts: Vec<&[u8]> = text.split(|byte| *byte == b'/').collect();
    let last = parts.len() - 1;
    for (nth, part) in parts.iter().enumerate() {
        let is_directory = nth < last;
        if is_directory && part.is_empty() {
            // An empty element: two slashes, or one at the beginning.
            path.push_str("%/");
            continue;
        }
        let mut shown = String::new();
        for (at, byte) in part.iter().enumerate() {
            let is_hidden = at == 0 && *byte == b'.';
            let is_suffix = is_directory && matches!(&part[at..], b".head" | b".body");
            match byte {
                b'a'..=b'z'
                | b'A'..=b'Z'
                | b'0'..=b'9'
                | b'.'
                | b'-'
                | b'_'
                | b'~'
                | b'='
                | b'&'
                | b'?'
                | b':'
                | b'@'
                | b'+'
                | b','
                | b';'
                | b'!'
                | b'$'
                | b'('
                | b')'
                    if !is_hidden && !is_suffix =>
                {
                    shown.push(char::from(*byte));
                }
                _ => shown.push_str(&format!("%{byte:02X}")),
            }
        }
        if shown.len() > PART_MAX {
            let mut end = PART_MAX - 34;
            // An escape stays whole.
            while shown.as_bytes()[end - 2..end].contains(&b'%') {
                end -= 1;
            }
            shown.truncate(end);
            shown.push_str("%+");
            shown.push_str(&String::from_utf8_lossy(&Key::of(part).hex()));
        }
        path.push_str(&shown);
        if is_directory {
            path.push('/');
        }
    }
    if stored != key {
        path.push_str("%=");
        path.push_str(&String::from_utf8_lossy(&stored.hex()));
    }
    if path.is_empty() || path.ends_with('/') {
        path.push('%');
    }
    path
}

/// Line of a list: status, bytes of the body, age, time until it is stale, key.
fn line(listed: &Listed<'_>) -> String {
    let meta = &listed.head.meta;
    let now = now();
    let until = if listed.is_purged_soft {
        "purged".to_owned()
    } else {
        text::span(meta.lifetime.valid_until.saturating_sub(now))
    };
    let age = text::span(now.saturating_sub(meta.lifetime.responded));
    format!("{}\t{}\t{age}\t{until}\t{}", meta.status, meta.body_len.unwrap_or(0), text::key(&meta.key_text))
}

fn json_line(dir: &Path, listed: &Listed<'_>) -> String {
    let StoredResponse { path, key, place, .. } = listed.stored;
    let meta = &listed.head.meta;
    let offset = match place {
        StoredPlace::Whole { .. } => None,
        StoredPlace::Record { address, .. } => Some(address.offset()),
    };
    let relative = path.strip_prefix(dir).unwrap_or(path);
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "key": lossy(&meta.key_text),
        "status": meta.status,
        "body_bytes": meta.body_len,
        "stored": meta.lifetime.responded,
        "valid_until": meta.lifetime.valid_until,
        "purged": listed.is_purged_soft.then_some("soft"),
        "etag": (!meta.etag.is_empty()).then(|| lossy(&meta.etag)),
        "vary": (!meta.vary.is_empty()).then(|| lossy(&meta.vary)),
        "tags": meta.tags.iter().map(lossy).collect::<Vec<_>>(),
        "hash": lossy(&key.hex()),
        "file": relative.display().to_string(),
        "offset": offset,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_directory_and_differ() {
        let long = "x".repeat(300);
        let keys = [
            "a",
            "a/b",
            "a/",
            "/a",
            "//a",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "",
            "a.body",
            "a.body/b",
            "a%2e",
            "a/.head/b",
            "ü",
            "a b",
            "a\nb",
            "%",
            "a?b=c&d",
            &long,
        ];
        let name = |text: &str| name(text.as_bytes(), Key::of(b"1"), Key::of(b"1"));
        let mut files = Vec::new();
        for key in keys {
            let name = name(key);
            assert!(!name.starts_with('/') && !name.contains("//") && name.is_ascii(), "{key}: {name}");
            for part in name.split('/') {
                assert!(!part.is_empty() && !part.starts_with('.') && part.len() < 240, "{key}: {name}");
            }
            files.extend([format!("{name}.head"), format!("{name}.body")]);
        }
        for (nth, file) in files.iter().enumerate() {
            for (other_nth, other) in files.iter().enumerate().filter(|(other, _)| *other != nth) {
                assert!(file != other && !other.starts_with(&format!("{file}/")), "{nth} {other_nth} {file}");
            }
        }
        assert_eq!(name("www.example.com/news/1?a=b"), "www.example.com/news/1?a=b");
        let variant = super::name(b"a", Key::of(b"1"), Key::of(b"2"));
        assert_eq!(variant, "a%=c4ca4238a0b923820dcc509a6f75849b");
    }
}
