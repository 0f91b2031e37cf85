//! One request, derived from its seed: behaviour of the client and of the origin, and the admissible outcomes.

use tw_testkit::Random;

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) method: &'static str,
    /// Location that forwards it.
    pub(super) place: &'static str,
    pub(super) upload: Upload,
    pub(super) answer: Answer,
    /// Bytes of the response's body.
    pub(super) size: usize,
    pub(super) manner: Manner,
    /// True if the client opens a new connection for it.
    pub(super) is_fresh: bool,
}

/// Body of the request: its size, and its framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    Nothing,
    Length(usize),
    Chunked(usize),
}

/// Behaviour of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Plain,
    SlowToSend,
    SlowToRead,
    Vanishes(Step),
}

/// Step at which a client disconnects; it sees nothing of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Connected,
    HalfAHead,
    HalfAnUpload,
    RequestSent,
    HalfAnAnswer,
}

/// Behaviour of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    // Valid responses.
    Length,
    InPieces,
    Chunked,
    Trailers,
    UntilClose,
    Http10,
    Interim,
    ByteByByte,
    // Responses that are wrong, but reach the client all the same.
    ClosesUnasked,
    MoreThanLength,
    MoreThanChunks,
    BodyOfHead,
    BodyOf304,
    // A response that may or may not reach the client, because the request was not read.
    Unread,
    // Responses that do not begin.
    CutHead,
    Reset,
    Garbage,
    LongHead,
    ManyFields,
    BothFramings,
    NoLength,
    TwoLengths,
    EndlessInterim,
    Switches,
    Silent,
    // Responses that do not end.
    CutBody,
    CutChunks,
    ResetBody,
    BadChunk,
    FallsSilent,
}

/// Admissible outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    /// All of its response.
    Whole,
    /// A beginning of it.
    Truncated,
    /// An error in its place.
    Refused,
    /// Any of them.
    Any,
}

const GOOD: &[Answer] = &[
    Answer::Length,
    Answer::InPieces,
    Answer::Chunked,
    Answer::Trailers,
    Answer::UntilClose,
    Answer::Http10,
    Answer::Interim,
    Answer::ByteByByte,
    Answer::ClosesUnasked,
    Answer::MoreThanLength,
    Answer::MoreThanChunks,
    Answer::BodyOf304,
];
const BAD: &[Answer] = &[
    Answer::CutHead,
    Answer::Reset,
    Answer::Garbage,
    Answer::LongHead,
    Answer::ManyFields,
    Answer::BothFramings,
    Answer::NoLength,
    Answer::TwoLengths,
    Answer::EndlessInterim,
    Answer::Switches,
    Answer::CutBody,
    Answer::CutChunks,
    Answer::ResetBody,
    Answer::BadChunk,
];
const OF_HEAD: &[Answer] = &[
    Answer::Length,
    Answer::Chunked,
    Answer::Interim,
    Answer::ByteByByte,
    Answer::ClosesUnasked,
    Answer::BodyOfHead,
    Answer::CutHead,
    Answer::Reset,
    Answer::Garbage,
];
const STEPS: &[Step] =
    &[Step::Connected, Step::HalfAHead, Step::HalfAnUpload, Step::RequestSent, Step::HalfAnAnswer];
/// The locations; in the last one an origin that says nothing is given up soon.
const PLACES: &[&str] = &["buffered", "memory", "direct"];
const HASTY: &str = "hasty";
/// Minimum size for a client that reads slowly.
const SLOW_SIZE: usize = 300_000;
/// Size up to which surplus bytes arrive together with the rest.
const SMALL: usize = 2000;

impl Case {
    /// The request of a seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let method = random.one_of(&["GET", "GET", "GET", "GET", "HEAD", "POST", "POST", "PUT"]);
        let upload = match method {
            "POST" | "PUT" if random.happens(50) => Upload::Length(random_size(&mut random)),
            "POST" | "PUT" => Upload::Chunked(random_size(&mut random)),
            _ => Upload::Nothing,
        };
        let answer = match (method, random.below(100)) {
            ("HEAD", _) => random.one_of(OF_HEAD),
            (_, 0) => random.one_of(&[Answer::Silent, Answer::FallsSilent]),
            ("POST" | "PUT", 1..10) => Answer::Unread,
            (_, 0..70) => random.one_of(GOOD),
            _ => random.one_of(BAD),
        };
        let place = match answer {
            Answer::Silent | Answer::FallsSilent => HASTY,
            _ => random.one_of(PLACES),
        };
        let manner = match random.below(100) {
            0..60 => Manner::Plain,
            60..70 => Manner::SlowToSend,
            70..77 => Manner::SlowToRead,
            _ => Manner::Vanishes(random.one_of(STEPS)),
        };
        let size = match answer {
            Answer::MoreThanLength | Answer::MoreThanChunks | Answer::BodyOfHead | Answer::BodyOf304 => {
                1 + random.below(SMALL)
            }
            _ if manner == Manner::SlowToRead => SLOW_SIZE + random.below(SLOW_SIZE),
            // The body has at least two bytes, so that it can be cut.
            _ => 2 + random_size(&mut random),
        };
        Self { seed, method, place, upload, answer, size, manner, is_fresh: random.happens(20) }
    }

    /// Body of the response, unique to the seed.
    pub(super) fn content(&self) -> Vec<u8> {
        Random::new(!self.seed).bytes(self.size)
    }

    /// The body of the request.
    pub(super) fn uploaded(&self) -> Vec<u8> {
        match self.upload {
            Upload::Nothing => Vec::new(),
            Upload::Length(size) | Upload::Chunked(size) => {
                Random::new(self.seed.rotate_left(32)).bytes(size)
            }
        }
    }

    /// The status of a response that was not refused.
    pub(super) fn status(&self) -> u16 {
        if self.answer == Answer::BodyOf304 { 304 } else { 200 }
    }

    /// Admissible outcome for a client that stays connected.
    pub(super) fn may(&self) -> May {
        match self.answer {
            Answer::Unread => May::Any,
            Answer::CutHead
            | Answer::Reset
            | Answer::Garbage
            | Answer::LongHead
            | Answer::ManyFields
            | Answer::BothFramings
            | Answer::NoLength
            | Answer::TwoLengths
            | Answer::EndlessInterim
            | Answer::Switches
            | Answer::Silent => May::Refused,
            Answer::CutBody
            | Answer::CutChunks
            | Answer::ResetBody
            | Answer::BadChunk
            | Answer::FallsSilent => May::Truncated,
            _ => May::Whole,
        }
    }

    /// True if no request is repeated when a kept connection was closed meanwhile: it is not idempotent, or its body is
    /// gone.
    pub(super) fn is_asked_once(&self) -> bool {
        self.method == "POST" || self.upload != Upload::Nothing && self.place == "direct"
    }
}

fn random_size(random: &mut Random) -> usize {
    let most = match random.below(100) {
        0..60 => 2000,
        60..90 => 40_000,
        90..99 => 150_000,
        _ => 1_000_000,
    };
    random.below(most)
}
