//! HTTP/1: malformed requests, request bodies, request smuggling, and details compared with nginx.

mod malformed_requests;
mod nginx_conformance;
mod request_bodies;
mod smuggling;
