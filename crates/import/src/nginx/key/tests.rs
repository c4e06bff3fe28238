//! Keys of zones, with the maps behind them.

use super::*;
use crate::nginx::parser::ConfParser;

fn read(conf: &str, key: &str) -> Result<ZoneKey, String> {
    let http = ConfParser::read_text(conf, "test.conf").unwrap();
    let table = VariableTable::read(&http).unwrap();
    read_key(key, &table, 0)
}

#[test]
fn plain_variables_are_parts() {
    assert_eq!(read("", "$binary_remote_addr").unwrap().parts, ["ip"]);
    let header = read("", "$http_x_api_key").unwrap();
    assert_eq!((&header.parts[..], header.missing), (&["header:x-api-key".to_owned()][..], Some("skip")));
    let both = read("", "$binary_remote_addr$http_x_api_key").unwrap();
    assert_eq!(
        (both.parts.len(), both.missing),
        (2, Some("shared")),
        "nginx counts it without the header, too"
    );
    assert!(read("", "constant").unwrap().parts.is_empty());
    assert!(read("", "").unwrap().is_empty);
    assert!(read("", "$request_uri").unwrap_err().contains("$request_uri"));
}

#[test]
fn a_geo_behind_a_map_exempts_networks() {
    let conf = "geo $limited { default 1; 10.0.0.0/8 0; 10.9.0.0/16 1; }
                map $limited $key { 0 \"\"; 1 $binary_remote_addr; }";
    let key = read(conf, "$key").unwrap();
    assert_eq!(key.parts, ["ip"]);
    let inside =
        |text: &str| key.bypass.iter().any(|net| net.contains(&text.parse::<std::net::IpAddr>().unwrap()));
    assert!(inside("10.1.2.3") && !inside("10.9.1.1") && !inside("192.0.2.1"));
    assert!(key.differences.is_empty());
}

#[test]
fn methods_and_addresses_exempt() {
    let post = read("map $request_method $key { POST $binary_remote_addr; }", "$key").unwrap();
    assert_eq!(
        (post.methods.as_slice(), post.parts.as_slice()),
        (&["POST".to_owned()][..], &["ip".to_owned()][..])
    );
    let address =
        read("map $remote_addr $key { default $binary_remote_addr; 192.0.2.9 \"\"; }", "$key").unwrap();
    assert_eq!(address.bypass.len(), 1);
}

#[test]
fn an_exemption_that_cannot_be_written_is_lost() {
    let key = read("map $http_x_internal $key { default $binary_remote_addr; yes \"\"; }", "$key").unwrap();
    assert_eq!(key.parts, ["ip"]);
    assert!(key.losses[0].contains("limited like all others"), "{key:?}");
    let key = read("map $http_x $key { default $http_x; \"\" \"\"; }", "$key").unwrap();
    assert_eq!((key.missing, key.losses.len()), (Some("skip"), 0), "a header that is missing is not counted");
    let get = read("map $request_method $key { GET $host; }", "$key").unwrap();
    assert!(get.losses[0].contains("HEAD"), "{get:?}");
    let key = read("map $remote_addr $key { 0:0::1 ''; default $host; }", "$key").unwrap();
    assert!(key.bypass.is_empty() && key.losses.is_empty(), "nginx never writes the address so: {key:?}");
}

#[test]
fn parts_whose_values_run_together_are_lost() {
    for exact in ["$binary_remote_addr$http_x", "$http_x", "a$http_x-b", "$host$uri", "$remote_addr|$uri"] {
        assert_eq!(read("", exact).unwrap().losses.len(), 0, "{exact}");
    }
    for lost in ["$remote_addr$http_x", "$http_x:$http_y", "$uri$http_x", "$host-$uri", "$http_x$uri"] {
        assert!(read("", lost).unwrap().losses.join(" ").contains("joins the parts"), "{lost}");
    }
}

#[test]
fn a_header_with_the_address_behind_it_is_one_key() {
    let key = read("map $http_x_k $key { default $http_x_k; \"\" $binary_remote_addr; }", "$key").unwrap();
    assert_eq!((key.parts.as_slice(), key.missing), (&["header:x-k".to_owned()][..], Some("ip")));
}

#[test]
fn several_keys_are_refused() {
    assert!(read("map $uri $key { /a $remote_addr; /b $host; }", "$key").is_err());
    assert!(read("geo $key { default a; 10.0.0.0/8 b; }", "$key").is_err());
    assert!(
        read("map $a $b { default $c; } map $x $c { default $b; }", "$b").unwrap_err().contains("each other")
    );
}
