//! Static files: responses, ranges, index files, listings, WebDAV, videos.

mod access_time;
mod autoindex;
mod dav;
mod dav_clients;
mod dav_ext;
mod empty_gif;
mod fancyindex;
mod gzip_static;
mod hls;
mod index;
mod index_and_try_files;
mod kept_heads;
mod mp4;
mod open_files;
mod random_index;
mod responses;
mod sendfile;
mod try_files;
