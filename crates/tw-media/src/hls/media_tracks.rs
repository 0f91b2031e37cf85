//! Tracks of a movie that a transport stream can carry.

use super::codec::Codec;
use super::transport_stream::CLOCK_HZ;
use crate::mp4::movie::{Fault, Movie, SampleTable};

/// A track that a transport stream can carry.
pub(super) struct MediaTrack {
    pub(super) table: SampleTable,
    pub(super) codec: Codec,
}

impl MediaTrack {
    /// A time of the track in ticks of a transport stream, from the beginning of the movie.
    pub(super) fn ticks(&self, time: u64) -> i64 {
        self.ticks_of(i64::try_from(time).unwrap_or(i64::MAX).saturating_add(self.table.shift))
    }

    /// Units of the track in ticks.
    pub(super) fn ticks_of(&self, units: i64) -> i64 {
        let ticks = i128::from(units) * i128::from(CLOCK_HZ) / i128::from(self.table.timescale);
        i64::try_from(ticks).unwrap_or(i64::MAX)
    }
}

/// A movie with the first of its tracks of each kind.
pub(super) struct MediaTracks {
    pub(super) movie: Movie,
    pub(super) video: Option<MediaTrack>,
    pub(super) audio: Option<MediaTrack>,
}

impl MediaTracks {
    pub(super) fn parse(moov: Vec<u8>) -> Result<Self, Fault> {
        let movie = Movie::parse(moov)?;
        let first = |handler: &[u8; 4]| {
            let mut tracks = movie.tracks().iter().filter(|track| track.handler == *handler);
            tracks.find_map(|table| {
                let codec = Codec::of(movie.description(table))?;
                Some(MediaTrack { table: table.clone(), codec })
            })
        };
        let video = first(b"vide");
        let audio = first(b"soun");
        if video.is_none() && audio.is_none() {
            return Err(Fault::In("no tracks that can be streamed were found"));
        }
        Ok(Self { movie, video, audio })
    }

    /// The tracks, video first.
    pub(super) fn all(&self) -> impl Iterator<Item = &MediaTrack> {
        self.video.iter().chain(&self.audio)
    }

    /// The track whose key frames begin fragments. There is one.
    pub(super) fn leading(&self) -> Option<&SampleTable> {
        self.all().next().map(|track| &track.table)
    }

    pub(super) fn duration_ms(&self) -> u64 {
        self.all().map(|track| self.movie.duration_ms(&track.table)).max().unwrap_or(0)
    }
}
