//! A fragment as a body: samples of video and sound in the order of their times, read from the file and put into packets as
//! the client takes them. One frame is in memory at a time, and the description of the movie.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_log::Text;
use tw_request::body::Pull;
use tw_request::files::OpenFile;
use tw_request::plan::LocalFuture;
use tw_request::request::Request;

use super::codec::Codec;
use super::media_tracks::{MediaTrack, MediaTracks};
use super::transport_stream::{CLOCK_HZ, Packets, PesHeader, StreamId};
use crate::mp4::movie::{Fault, Sample, SampleCursor};
use crate::mp4::reader;

/// Bytes of neighbouring samples that are read at once.
const WINDOW_SIZE: u64 = 64 << 10;
/// Bytes of sound that make one PES: some frames, so that headers take little.
const SOUND_SIZE: usize = 2 << 10;
/// Frames of it, which may be empty.
const SOUND_FRAMES_MAX: usize = 64;
/// Longest time of that sound, in ticks.
const SOUND_TICKS: i64 = CLOCK_HZ as i64 / 4;

/// Samples of a fragment in one track, from the first one on.
pub(super) struct TrackPart {
    cursor: SampleCursor,
    /// Time of the first sample that is not in it.
    end: u64,
}

/// Samples of a fragment.
pub(super) struct FragmentParts {
    video: Option<TrackPart>,
    audio: Option<TrackPart>,
}

impl FragmentParts {
    /// The samples from `start_ms` to `end_ms`; video from the key frame at or before it on. `None` if there are none.
    pub(super) fn find(media: &MediaTracks, start_ms: u64, end_ms: u64) -> Result<Option<Self>, Fault> {
        let movie = &media.movie;
        let mut video = None;
        let mut start_ms = start_ms;
        if let Some(MediaTrack { table, .. }) = &media.video {
            let mut at = movie.times(table);
            let end = table.units(end_ms);
            movie.go_to_time(&mut at, table.units(start_ms));
            if !at.is_at_end() && at.time() < end {
                let key = movie.key_before(table, &at)?;
                start_ms = start_ms.min(table.milliseconds(key.time()));
                video = Some(TrackPart { cursor: movie.samples_from(table, key)?, end });
            }
        }
        let mut audio = None;
        if let Some(MediaTrack { table, .. }) = &media.audio {
            let mut at = movie.times(table);
            let end = table.units(end_ms);
            movie.go_to_time(&mut at, table.units(start_ms));
            if !at.is_at_end() && at.time() < end {
                audio = Some(TrackPart { cursor: movie.samples_from(table, at)?, end });
            }
        }
        Ok((video.is_some() || audio.is_some()).then_some(Self { video, audio }))
    }
}

/// Track of a segment that is being sent.
struct Stream {
    part: TrackPart,
    id: StreamId,
    /// Bytes of the file that were read, and where they are.
    window: Bytes,
    window_start: u64,
    /// The next sample, if it is known already.
    next: Option<Sample>,
}

/// PES that is being gathered.
struct Gathered {
    /// Position of its track.
    track: usize,
    frames: usize,
    /// Header, by its first frame.
    header: PesHeader,
}

impl Gathered {
    /// Returns true if a frame that is presented then is not of it. Each picture has one of its own.
    fn is_complete(&self, data: &[u8], presented: i64) -> bool {
        self.header.is_video
            || data.len() >= SOUND_SIZE
            || self.frames >= SOUND_FRAMES_MAX
            || presented.saturating_sub(self.header.presented) > SOUND_TICKS
    }
}

/// A segment.
pub(super) struct Segment {
    file: Rc<OpenFile>,
    media: Arc<MediaTracks>,
    /// Video and sound.
    streams: [Option<Stream>; 2],
    /// Longest sample, in bytes.
    sample_max: usize,
    packets: Packets,
    gathered: Option<Gathered>,
    /// Data of the PES that is being gathered.
    data: Vec<u8>,
    out: Vec<u8>,
}

impl Segment {
    pub(super) fn new(
        file: Rc<OpenFile>,
        media: Arc<MediaTracks>,
        parts: FragmentParts,
        sample_max: usize,
    ) -> Self {
        // Every segment has all streams of the movie in its tables.
        let types: Vec<u8> = media.all().map(|track| track.codec.stream_type()).collect();
        let stream =
            |part, id| Stream { part, id: StreamId(id), window: Bytes::new(), window_start: 0, next: None };
        let sound_id = usize::from(media.video.is_some());
        let video = parts.video.map(|part| stream(part, 0));
        let audio = parts.audio.map(|part| stream(part, sound_id));
        let packets = Packets::new(&types);
        Self {
            file,
            media,
            streams: [video, audio],
            sample_max,
            packets,
            gathered: None,
            data: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Makes the next PES; `false` at the end. Goes on with what was gathered if the future was dropped.
    async fn begin_pes(&mut self, r: &mut Request) -> io::Result<bool> {
        let media = self.media.clone();
        let tracks = [&media.video, &media.audio];
        let at = match &self.gathered {
            Some(gathered) => gathered.track,
            None => match self.earliest(&media, r)? {
                Some(at) => at,
                None => return Ok(false),
            },
        };
        let (Some(track), Some(stream)) = (tracks[at], &mut self.streams[at]) else { return Ok(false) };
        while let Some(sample) = stream.peek(&media, track).map_err(|fault| invalid(fault, r))? {
            let decoded = track.ticks(sample.time);
            let presented = decoded.saturating_add(track.ticks_of(sample.offset.into()));
            if self.gathered.as_ref().is_some_and(|gathered| gathered.is_complete(&self.data, presented)) {
                break;
            }
            let bytes = stream.read(&self.file, &media, track, &sample, self.sample_max, r).await?;
            stream.next = None;
            if track.codec.push(&bytes, sample.is_key, &mut self.data).is_none() {
                return Err(io::Error::other("a frame of sound is too long"));
            }
            let is_video = matches!(track.codec, Codec::Video(_));
            let id = stream.id;
            let header = PesHeader { stream: id, is_video, is_key: sample.is_key, presented, decoded };
            self.gathered.get_or_insert(Gathered { track: at, frames: 0, header }).frames += 1;
        }
        if let Some(Gathered { header, .. }) = self.gathered.take() {
            self.packets.begin(header, &self.data);
            self.data.clear();
        }
        Ok(true)
    }

    /// The track with the sample that is decoded first.
    fn earliest(&mut self, media: &MediaTracks, r: &Request) -> io::Result<Option<usize>> {
        let mut first: Option<(usize, i64)> = None;
        for (at, track) in [&media.video, &media.audio].into_iter().enumerate() {
            let (Some(track), Some(stream)) = (track, &mut self.streams[at]) else { continue };
            let Some(sample) = stream.peek(media, track).map_err(|fault| invalid(fault, r))? else {
                self.streams[at] = None;
                continue;
            };
            let decoded = track.ticks(sample.time);
            if first.is_none_or(|(_, earliest)| decoded < earliest) {
                first = Some((at, decoded));
            }
        }
        Ok(first.map(|(at, _)| at))
    }
}

impl Stream {
    /// The next sample, if it is in the fragment.
    fn peek(&mut self, media: &MediaTracks, track: &MediaTrack) -> Result<Option<Sample>, Fault> {
        if self.next.is_none() && self.part.cursor.time().is_some_and(|time| time < self.part.end) {
            self.next = media.movie.next(&track.table, &mut self.part.cursor)?;
        }
        Ok(self.next.clone())
    }

    /// Reads a sample, and as many after it as lie next to each other in the file.
    async fn read(
        &mut self,
        file: &OpenFile,
        media: &MediaTracks,
        track: &MediaTrack,
        sample: &Sample,
        sample_max: usize,
        r: &mut Request,
    ) -> io::Result<Bytes> {
        let size = sample.place.end - sample.place.start;
        if size > sample_max as u64 {
            return Err(io::Error::other(format!("a frame of {size} bytes is larger than \"hls_buffers\"")));
        }
        if sample.place.end > file.meta().size {
            return Err(io::Error::other("a frame is not in the file"));
        }
        let is_here = sample.place.start >= self.window_start
            && sample.place.end <= self.window_start + self.window.len() as u64;
        if !is_here {
            let end = self.run_end(media, track, sample).min(file.meta().size);
            self.window = reader::read(r, file, sample.place.start..end).await?.into();
            self.window_start = sample.place.start;
        }
        let start = (sample.place.start - self.window_start) as usize;
        Ok(self.window.slice(start..start + size as usize))
    }

    /// End of the samples from `sample` on that follow each other in the file and are read at once.
    fn run_end(&self, media: &MediaTracks, track: &MediaTrack, sample: &Sample) -> u64 {
        let mut end = sample.place.end;
        let mut ahead = self.part.cursor.clone();
        while end - sample.place.start < WINDOW_SIZE && ahead.time().is_some_and(|time| time < self.part.end)
        {
            match media.movie.next(&track.table, &mut ahead) {
                // A sample without bytes would not come to an end.
                Ok(Some(next)) if next.place.start == end && next.place.end > end => end = next.place.end,
                _ => break,
            }
        }
        end.min(sample.place.end.max(sample.place.start + WINDOW_SIZE))
    }
}

/// Error of a body whose head has been sent.
fn invalid(fault: Fault, r: &Request) -> io::Error {
    io::Error::other(fault.in_file(Text(&r.uri.path), "").to_string())
}

impl Pull for Segment {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            while self.out.len() < want {
                if self.packets.is_empty() && !self.begin_pes(r).await? {
                    break;
                }
                self.packets.take(want, &mut self.out);
            }
            let piece = std::mem::take(&mut self.out);
            Ok((!piece.is_empty()).then(|| piece.into()))
        })
    }
}
