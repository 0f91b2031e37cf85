# Varnish before the origin; its storage is in memory (-s malloc).
vcl 4.1;
backend default {
    .host = "127.0.0.1";
    .port = "@ORIGIN@";
}
