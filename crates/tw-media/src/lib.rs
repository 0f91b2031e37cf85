//! Modules that read films: parts of MP4 and FLV files from a given second on, and HTTP Live Streaming.

mod flv;
mod hls;
mod mp4;

pub use flv::Flv;
pub use hls::Hls;
pub use mp4::Mp4;
