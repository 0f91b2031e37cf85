//! Authentication by tokens: `auth_jwt` checks signed tokens (JWT), `auth_oidc` signs users in at an OpenID provider.

mod auth_jwt;
mod auth_oidc;
mod jose;

pub use auth_jwt::AuthJwt;
pub use auth_oidc::{AuthOidc, directives as oidc_provider_directives};
