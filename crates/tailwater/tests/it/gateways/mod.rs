//! Gateways to applications: FastCGI, uwsgi, SCGI, gRPC, memcached.

mod fastcgi;
mod grpc;
mod grpc_faults;
mod grpc_interop;
mod memcached;
mod real_applications;
mod scgi;
mod uwsgi;
