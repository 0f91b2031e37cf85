//! Playlists (RFC 8216): fragments that begin with key frames, and the text that lists them.

use std::fmt;

use tw_http::escape::Escape;

use super::media_tracks::MediaTracks;
use crate::mp4::movie::Fault;

/// Fragments of one playlist.
pub(super) const FRAGMENTS_MAX: usize = 100_000;

/// Arguments of the request for a playlist, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlaylistRange {
    pub(super) start_ms: u64,
    /// `None` is the end of the movie.
    pub(super) end_ms: Option<u64>,
    /// Length of a fragment; it ends with the first key frame at or behind it.
    pub(super) fragment_ms: u64,
    /// Position at which players begin, negative from the end.
    pub(super) offset_ms: Option<i64>,
}

/// Bounds of the fragments of a playlist, in milliseconds: one more than there are fragments, or none.
pub(super) fn bounds(media: &MediaTracks, range: &PlaylistRange) -> Result<Vec<u64>, Fault> {
    let movie = &media.movie;
    let Some(track) = media.leading() else { return Ok(Vec::new()) };
    let end_ms = range.end_ms.unwrap_or(u64::MAX).min(media.duration_ms());
    let mut at = movie.times(track);
    movie.go_to_time(&mut at, track.units(range.start_ms));
    if at.is_at_end() || track.milliseconds(at.time()) >= end_ms {
        return Ok(Vec::new());
    }
    let mut last = track.milliseconds(movie.key_before(track, &at)?.time());
    let mut bounds = vec![last];
    loop {
        let wanted_number = last.saturating_add(range.fragment_ms.max(1));
        if wanted_number >= end_ms {
            break;
        }
        movie.go_to_time(&mut at, track.units(wanted_number));
        if !movie.go_to_key(track, &mut at) {
            break;
        }
        last = track.milliseconds(at.time());
        if last >= end_ms {
            break;
        }
        if bounds.len() == FRAGMENTS_MAX {
            return Err(Fault::In("too many fragments"));
        }
        bounds.push(last);
    }
    bounds.push(end_ms);
    Ok(bounds)
}

/// The text of a playlist. `name` is the name of the media file, `args` are arguments for its fragments.
pub(super) fn text(bounds: &[u64], name: &[u8], args: &[u8], offset_ms: Option<i64>) -> Vec<u8> {
    let fragments = || bounds.iter().zip(bounds.iter().skip(1));
    let longest = fragments().map(|(start, end)| end - start).max().unwrap_or(0);
    let mut escaped = Vec::new();
    // A name before the first colon would be a scheme.
    if name.contains(&b':') {
        escaped.extend_from_slice(b"./");
    }
    Escape::Uri.push(name, &mut escaped);
    let mut more = if args.is_empty() { Vec::new() } else { [b"&", args].concat() };
    // A line must not end in it.
    more.retain(|byte| *byte > b' ');
    // Lengths are compared with it as rounded to seconds.
    let target = (longest.saturating_add(500) / 1000).max(1);
    let mut out = format!("#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{target}\n").into_bytes();
    out.extend_from_slice(b"#EXT-X-PLAYLIST-TYPE:VOD\n");
    if let Some(offset) = offset_ms {
        let sign = if offset < 0 { "-" } else { "" };
        let offset = Seconds(offset.unsigned_abs());
        out.extend_from_slice(format!("#EXT-X-START:TIME-OFFSET={sign}{offset}\n").as_bytes());
    }
    out.push(b'\n');
    for (start, end) in fragments() {
        out.extend_from_slice(format!("#EXTINF:{},\n", Seconds(end - start)).as_bytes());
        out.extend_from_slice(&escaped);
        out.extend_from_slice(format!(".ts?start={}&end={}", Seconds(*start), Seconds(*end)).as_bytes());
        out.extend_from_slice(&more);
        out.push(b'\n');
    }
    out.extend_from_slice(b"\n#EXT-X-ENDLIST\n");
    out
}

/// Milliseconds, shown as seconds with three decimals.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_list_fragments_with_arguments() {
        let text = |bounds: &[u64], name: &str, args: &str, offset| {
            String::from_utf8(text(bounds, name.as_bytes(), args.as_bytes(), offset)).unwrap()
        };
        assert_eq!(
            text(&[0, 9_333, 16_500], "test.mp4", "a=1&b=2", None),
            "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:9\n#EXT-X-PLAYLIST-TYPE:VOD\n\n\
             #EXTINF:9.333,\ntest.mp4.ts?start=0.000&end=9.333&a=1&b=2\n\
             #EXTINF:7.167,\ntest.mp4.ts?start=9.333&end=16.500&a=1&b=2\n\n#EXT-X-ENDLIST\n"
        );
        let odd = text(&[1, 20], "a b:#?.mov", "x=\r\ny", Some(-1_250));
        assert!(odd.contains("#EXT-X-START:TIME-OFFSET=-1.250\n"), "{odd}");
        assert!(odd.contains("TARGETDURATION:1\n"), "{odd}");
        let endless = text(&[0, u64::MAX], "a.mp4", "", None);
        assert!(endless.contains("TARGETDURATION:18446744073709551\n"), "{endless}");
        assert!(odd.contains("\n./a%20b:%23%3F.mov.ts?start=0.001&end=0.020&x=y\n"), "{odd}");
    }
}
