//! Filters: compression, character sets, SSI, additions, replaced words, header fields.

mod addition;
mod charset;
mod echo;
mod gunzip;
mod gzip;
mod headers;
mod headers_more;
mod image_filter;
mod msie;
mod ssi;
mod sub_filter;
mod subrequest_concurrency;
mod subrequest_variables;
mod subs_filter;
mod userid;
