//! What nginx refuses, and what the gateway decides otherwise or as nginx does.

/// Before `server` and inside of it; `@P` forwards, `@U` to the server that `$u` names, `@L` is the address of the
/// server, and `@B` that of the backend. Then the path of a request that nginx does not forward, with further header
/// fields.
pub type Door = (&'static str, &'static str, &'static str, &'static str);

const GEO: &str = "geo $g { default 0; 127.1.0.1 1; }";
/// A path whose request names no host, and one whose host is `_`.
const HOSTLESS: &str = "/x HTTP/1.0\r\n\r\n";
const UNDERSCORE: &str = "/x HTTP/1.1\r\nHost: _\r\nConnection: close\r\n\r\n";
const ZONE: &str = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;";

pub const DOORS: &[Door] = &[
    // Expressions that the gateway cannot match, and those inside of others.
    ("", "location / { @P } location ~ /\\.(?!well-known|x) { deny all; @P }", "/.git", ""),
    ("", "location / { @P } location ~ ^/(?!public) { return 403; }", "/secret", ""),
    ("", "location / { @P } location ~ (?<!x)\\.a$ { deny all; } location ~ \\.a$ { @P }", "/.a", ""),
    (
        "",
        "location ^~ /v/ { @P location ~ v { return 403; } location ~ /v { deny all; } } location ~ x {}",
        "/v/v",
        "",
    ),
    ("", "location / { @P } location ~ ^/(a)\\1 { return 403; }", "/aa", ""),
    ("", "deny all; location / { allow all; @P } location ~ ^/(?!public) { @P }", "/secret", ""),
    ("", "location ~ ^/app { @P location ~ ^/app/admin { return 403; } }", "/app/admin", ""),
    ("", "location / { @P location ~ /\\.(?!well-known) { deny all; } }", "/.git", ""),
    ("", "location / { @P } location ^~ /app/ { @P location ~ admin { return 403; } }", "/app/admin", ""),
    ("", "location / { @P } location /v1/ { @P location ~* ^/V1/adm { deny all; @P } }", "/v1/adm", ""),
    ("", "location / { @P } location /app/ { @P location ~ (?<!x)\\.key$ { deny all; } }", "/app/a.key", ""),
    // Steps in the order of the file.
    ("", "rewrite ^/old$ https://new.test/ permanent; return 403; location / { @P }", "/x", ""),
    ("", "location / { rewrite ^/a$ /b last; return 403; @P }", "/x", ""),
    ("", "location / { if ($http_x) { return 200 ok; } return 403; @P }", "/x", ""),
    ("", "location / { if ($cookie_session = '') { return 302 /login; } @P }", "/x", ""),
    (
        "",
        "location / { valid_referers none a.test; if ($invalid_referer) { rewrite ^ /no.png redirect; } @P }",
        "/x",
        "Referer: http://evil.test/\r\n",
    ),
    ("", "if ($http_x) { set $no 1; } location / { if ($no) { return 403; } @P }", "/x", "X: 1\r\n"),
    (GEO, "location / { if ($g = $http_x) { return 403; } @P }", "/x", "X: 1\r\n"),
    (GEO, "set $g 1; location / { if ($g) { return 403; } @P }", "/x", ""),
    (GEO, "if ($g) { return 403; } location /a/ { @P } location / { @P }", "/a", ""),
    ("", "rewrite ^/a /denied last; location / { @P } location /denied { return 403; }", "/a", ""),
    ("", "location / { deny all; @P } location /a { rewrite ^/a(.*)$ /b$1 last; @P }", "/a", ""),
    ("", "location / { deny all; } location /a/ { try_files $uri @b; } location @b { @P }", "/a", ""),
    ("", "location / { try_files /none =403; @P }", "/x", ""),
    ("", "location / { try_files /none @b; } location @b { return 403; @P }", "/x", ""),
    (
        ZONE,
        "error_page 503 = @b; location @b { @P }
         location / { limit_req zone=z; if ($http_x) { return 403; } @P }",
        "/x",
        "X: 1\r\n",
    ),
    ("", "location / { error_page 403 @b; deny all; @P } location @b { return 403; }", "/x", ""),
    // Names of servers.
    ("", "server_name a.test; location / { @P } } server { listen @L; return 403;", HOSTLESS, ""),
    ("", "server_name a; location / { @P } } server { listen @L; server_name '' b; deny all;", HOSTLESS, ""),
    (
        "",
        "server_name a.test; location / { @P } } server { listen @L; server_name _; return 403;",
        UNDERSCORE,
        "",
    ),
    (
        "",
        "return 403; } server { listen @L; server_name test; } server { listen @L; server_name .test; location / { @P }",
        "/x",
        "",
    ),
    (
        "",
        "return 403; } server { listen @L; server_name *.s.test; } server { listen @L; server_name .s.test; location / { @P }",
        "/x",
        "",
    ),
    // Words that are not what they look like.
    ("", "location / { return 403; } location /admin/pub\u{a0}{ @P }", "/admin/pub", ""),
    ("", "location / { return 403; } location \"= /x\" { @P }", "/x", ""),
    ("", "location / { return 403; } location \"=\" \" /x\" { @P }", "/x", ""),
    ("", "location / { return 403; } location ^~ \"= /x\" { @P }", "/x", ""),
    ("", "location / { return 403; } location ^~ \"~ x\" { @P }", "/x", ""),
    (GEO, "location / { if ($g != \"'1'\") { return 403; } @P }", "/x", ""),
    // Mapped addresses are none of IPv4.
    ("", "location / { allow ::ffff:127.1.0.1; deny all; @P }", "/x", ""),
    ("", "location / { allow ::ffff:0:0/96; deny all; @P }", "/x", ""),
    ("geo $g { default 1; ::ffff:127.0.0.0/104 0; }", "location / { if ($g) { return 403; } @P }", "/x", ""),
    // What inner locations inherit.
    ("", "location / { @P } location /a/ { internal; location /a/b { @P } }", "/a/b", ""),
    ("", "location / { @P } location /a/ { internal; location ~ x { @P } }", "/a/x", ""),
    (
        "",
        "satisfy any; location / { allow 127.1.0.1; deny all; try_files /n @b; } location @b { auth_basic x; auth_basic_user_file f; @P }",
        "/",
        "X: 1\r\n",
    ),
    // `try_files` and its named location.
    (
        "limit_req_zone $http_x zone=a:1m rate=1r/m; limit_req_zone $binary_remote_addr zone=b:1m rate=1r/m;",
        "location / { limit_req zone=a; try_files /none @b; } location @b { limit_req zone=b; @P }",
        "/once",
        "",
    ),
    (
        ZONE,
        "location / { error_page 503 = @c; try_files /none @b; } location @b { limit_req zone=z; @P }
         location @c { @P }",
        "/once",
        "",
    ),
    (
        "",
        "location / { try_files /none @b; } location @b { rewrite ^ https://o$request_uri? permanent; @P }",
        "/",
        "",
    ),
    (
        "",
        "location / { try_files /none @b; limit_except GET { allow all; } } location @b { @P }",
        "POST /x",
        "",
    ),
    (
        "",
        "location / { try_files /none @b; } location @b { limit_except GET { deny all; } @P }",
        "POST /x",
        "",
    ),
    (
        GEO,
        "location / { set $g 1; try_files /none @b; } location @b { if ($g) { return 403; } @P }",
        "/x",
        "",
    ),
    (
        "",
        "location / { try_files /none @b; if ($http_x) { set $y 1; } } location @b { @P }",
        "/x",
        "X: 1\r\n",
    ),
    ("", "location / { try_files /none @b; if ($http_x) { gzip on; } } location @b { @P }", "/x", "X: 1\r\n"),
    // Steps of an `if`, and `limit_except` beside other checks.
    ("", "location / { @P if ($http_x) { fastcgi_pass 127.0.0.1:1; } }", "/x", "X: 1\r\n"),
    (
        "",
        "set $memcached_key x; location / { @P if ($http_x) { memcached_pass 127.0.0.1:1; } }",
        "/x",
        "X: 1\r\n",
    ),
    (
        "",
        "location / { satisfy any; allow 127.2.0.1; deny all; auth_basic x; auth_basic_user_file f;
         limit_except GET { deny 127.9.0.1; } @P }",
        "POST /x",
        "",
    ),
    // The redirect to a slash.
    ("", "location / { @P } location /a/ { internal; @P }", "/a", ""),
    ("", "location / { @P } location = /a/ { @P }", "/a", ""),
    ("", "location / { @P } location /a/ { fastcgi_pass 127.0.0.1:1; }", "/a", ""),
    ("", "location / { @P } location /a { @P location /a/ { @P } }", "/a", ""),
    ("", "location /x { @P location /x/a { @P } } location /x/a/ { @P }", "/x/a", ""),
    ("", "location /x { @P location /x/a/b { return 403; } } location = /x/a { @P }", "/x/a/b", ""),
    // Expressions.
    ("", "location / { @P } location ~ \"^/[^]$]+$\" { deny all; @P }", "/%3F", ""),
    ("", "location / { @P } location ~ \"^/[[:alpha:]$]$\" { deny all; @P }", "/$", ""),
    ("", "location / { @P } location ~ \"^/[^a]$\" { deny all; @P }", "/%E9", ""),
    ("", "location / { @P } location /b/ { @P location ~ \"\\W[^a]$\" { deny all; @P } }", "/b/%E9%E9", ""),
    ("", "location / { @P } location ~ \"^/a$\n\" { deny all; @P }", "/a%0A", ""),
    // Paths that are rewritten to other locations.
    (
        "",
        "location / { @P } location /x { rewrite ^(.*)$ /deny?u=http://h$1 last; @P } location /deny { deny all; }",
        "/x",
        "",
    ),
    (
        "",
        "location / { @P } location /x { rewrite ^ /b last; @P } location /b { rewrite ^ /d last; @P } location /d { deny all; }",
        "/x",
        "",
    ),
    (
        "",
        "location / { @P } location /x { rewrite ^ /b last; @P } location /b { try_files /none =503; }",
        "/x",
        "",
    ),
    ("", "location / { @P } location /x { rewrite ^ /b last; @P } location /b { root /none; }", "/x", ""),
    (
        "",
        "location / { @P } location /x { rewrite ^ /b last; @P } location /b { fastcgi_pass 127.0.0.1:1; }",
        "/x",
        "",
    ),
    (
        "",
        "auth_basic x; auth_basic_user_file f; location /x { auth_basic off; rewrite ^ /b last; @P }",
        "/x",
        "",
    ),
    ("", "location / { rewrite ^/admin /login redirect; @P }", "/admin", ""),
    // Locations and servers that are left out.
    ("", "location / { @P } location ~ ^/(?!public) { try_files /none =503; }", "/x", ""),
    ("", "location / { @P } location ~ /\\.(?!well-known) { root /none; }", "/.git", ""),
    ("", "location ~ ^/app { @P location ~ ^/app/priv { root /none; } }", "/app/priv", ""),
    ("", "location /app/ { @P location ~ (?<!x)\\.git { } }", "/app/.git", ""),
    ("", "location / { @P } } server { listen @L; server_name ~^s; return 301 https://x/;", "/", ""),
    (
        "",
        "location / { @P } } server { listen @L; server_name ~^s; location / { if ($cookie_s = '') { return 302 /; } @P }",
        "/",
        "",
    ),
    (
        "deny all;",
        "allow all; location / { @P } } server { listen @L; server_name ~^s; location / { @P }",
        "/",
        "",
    ),
];

const LIM: &str = "geo $lim { default ''; 10.0.0.0/8 x; } limit_req_zone $lim zone=z:1m rate=1r/m;";

/// The same with directives of modules that nginx does not have here.
pub const MODULES: &[&str] = &[
    "access_by_lua 'ngx.exit(403)';",
    "access_by_lua_file x.lua;",
    "access_by_njs x;",
    "auth_cas on;",
    "auth_jwt_enabled on;",
    "auth_jwt_require $x;",
    "auth_spnego on;",
    "modsecurity on;",
    "perl_access x;",
    "rewrite_by_lua_block { ngx.exit(403) }",
    "vouch_check on;",
    "ssl_crl crl.pem;",
];

/// Each of these is decided otherwise, and no line of it said so.
pub const LOST: &[(&str, &str)] = &[
    ("", "location / { if ($scheme = http) { return 301 https://$host$request_uri; } @P }"),
    ("", "location / { if ($request_method = OPTIONS) { return 204; } @P }"),
    ("", "location / { if ($http_x) { break; } return 403; }"),
    ("", "location / { if ($http_x) { @P } @P }"),
    ("", "set $b 127.0.0.1:1; if ($http_x) { set $b 127.0.0.1:2; } location / { proxy_pass http://$b; }"),
    ("", "location / { @P } location /a { rewrite ^/a /b last; @P }"),
    ("", "location / { @P } rewrite ^/a /b break;"),
    ("", "location / { @P } rewrite ^/a https://other.test/ permanent;"),
    ("", "location / { @P } location ~* ^/(?!api/).*\\.js$ { @P }"),
    ("", "location / { @P } location ~ ^/a { @P location ~ b$ { @P } }"),
    ("", "location / { deny all; error_page 403 = @b; @P } location @b { @P }"),
    ("", "location / { deny all; error_page 403 =200 /b; @P } location = /b { return 200 ok; }"),
    ("", "location / { deny all; error_page 403 https://login.test/; @P }"),
    (ZONE, "location / { limit_req zone=z; error_page 503 =200 /b; @P } location = /b { return 200 ok; }"),
    (
        ZONE,
        "location / { limit_req zone=z; error_page 503 = @b; @P }
         location @b { if ($request_method = POST) { return 405; } @P }",
    ),
    ("", "error_page 404 /50x.html; location / { return 301 /b/; } location /b/ { return 404; }"),
    ("", "location / { return 403; error_page 403 = @b; } location @b { @P }"),
    ("", "error_page 404 /x.html; location ~ x { limit_except PUT { deny all; } @P }"),
    (ZONE, "error_page 503 = @b; location / { limit_req zone=z; deny all; @P } location @b { @P }"),
    ("", "location / { proxy_intercept_errors on; error_page 401 = @b; @P } location @b { @P }"),
    ("", "large_client_header_buffers 2 1k; location / { @P }"),
    ("", "merge_slashes off; location / { @P } location /a { deny all; @P }"),
    ("", "root /var/www; location /a { @P }"),
    ("root /var/www;", "location /a { @P }"),
    ("", "location / { limit_except GET { deny all; } return 200; }"),
    (ZONE, "server_name d; location / { @P } } server { listen @L; limit_req zone=z; location / { @P }"),
    ("", "return 403; } server { listen @L; server_name e.test.; location / { @P }"),
    ("", "location / { @P } } server { listen @L; server_name [0:0::1]; return 403;"),
    // Variables that are written twice.
    (LIM, "set $lim $binary_remote_addr; limit_req zone=z; location / { @P }"),
    (LIM, "location / { set $Lim $binary_remote_addr; limit_req zone=z; @P }"),
    (LIM, "location ~ ^/(?<lim>.) { limit_req zone=z; @P }"),
    (
        "map $http_x $k { default 1; } split_clients $remote_addr $k { * x; } limit_req_zone $k zone=z:1m rate=1r/m;",
        "limit_req zone=z; location / { @P }",
    ),
    (
        "limit_req_zone $http_x zone=z:1m rate=1r/m;",
        "set $http_x $remote_addr; limit_req zone=z; location / { @P }",
    ),
    (
        "map $http_x $k { '' $remote_addr; default $http_x; } limit_req_zone $k zone=z:1m rate=1r/m;",
        "set $http_x a; limit_req zone=z; location / { @P }",
    ),
    ("", "set $u 127.0.0.1:1; location /d { set $u 127.0.0.1:2; @U location /d/e { @U } }"),
    ("", "set $u 127.0.0.1:1; location / { set $u 127.0.0.1:2; try_files /x @b; } location @b { @U }"),
    ("", "break; set $u 127.0.0.1:1; location / { @U }"),
    ("", "location / { if ($http_x) { break; } set $u 127.0.0.1:1; @U }"),
    ("", "set $u 127.0.0.1:1; location ~ ^/(?<u>.+) { @U }"),
    ("", "set $u 127.0.0.1:1; set $U 127.0.0.1:2; location / { @U }"),
    // Paths that are not forwarded as nginx does.
    ("", "set $u 127.0.0.1:1; location / { proxy_pass http://$u/; }"),
    ("", "set $u 127.0.0.1:1; location = /e { proxy_pass http://$u/e; }"),
    ("", "location / { set $u 127.0.0.1:1/e; @U }"),
    ("", "location /s/ { rewrite ^/s/(.*)$ /$1 break; proxy_pass http://@B/; }"),
    ("", "location / { rewrite ^ /n?a=b break; @P }"),
    ("", "location / { rewrite ^/a /b$host break; @P }"),
    ("", "location / { rewrite ^/(?=a) /b break; @P }"),
    ("", "location / { rewrite ^/a /b break; rewrite ^/c /d break; @P }"),
    ("", "location / { break; rewrite ^/a /b break; @P } location /a { proxy_pass http://@B/%41/; }"),
    ("", "location /d/ { proxy_pass http://@B/e/?f=; }"),
    ("", "location /d/ { proxy_pass http://@B/e//; }"),
    (GEO, "error_page 418 = @b; location / { if ($g) { return 418; } @P } location @b { @P }"),
    (GEO, "location / { if ($g) { return 404; } @P }"),
    (
        "",
        "location /a { internal; error_page 404 =200 /ok; } location = /ok { return 200; } location / { @P }",
    ),
    ("", "location / { @P error_page 502 = @b; } location @b { @P }"),
    ("", "location / { @P error_page 502 =200 /ok; } location = /ok { return 200; }"),
    (
        "",
        "location / { error_page 302 = @b; rewrite ^ https://x$request_uri? redirect; } location @b { return 403; }",
    ),
    ("", "location / { try_files /none @b; } location @b { client_max_body_size 1k; @P }"),
    (
        "",
        "location / { @P } location = /deny { deny all; }
         location /x { rewrite ^(.*)$ /deny?u=http://h$1 last; @P }",
    ),
];

/// The constructs beside them that are translated whole.
pub const WHOLE: &[(&str, &str)] = &[
    ("", "location / { break; return 403; @P }"),
    ("", "location / { @P } location /h { return 200 ok; if ($http_x) { return 403; } }"),
    (GEO, "location / { @P } location /h { return 200 ok; if ($g) { return 403; } }"),
    (GEO, "if ($g) { return 403; } location /a/ { @P } location / { @P } location = /i { internal; @P }"),
    (GEO, "location / { if ($g) { return 403; } limit_except GET { allow all; } @P }"),
    ("", "location / { if ($http_x) { add_header X-Y z; } @P }"),
    ("", "location /a/ { @P } location / { client_max_body_size 1m; @P }"),
    ("", "location / { client_max_body_size 50m; @P }"),
    ("", "location / { @P } location /up { client_max_body_size 50m; @P }"),
    ("", "location / { try_files /none @b; } location @b { limit_rate 1m; @P }"),
    ("", "location / { @P error_page 500 502 @b; } location @b { return 502 sorry; }"),
    (
        "",
        "location /a { @P location ~ x { @P } } location /ab/ { @P } location ~ ^/ab/x { return 404; } location / { @P }",
    ),
    ("", "location / { auth_basic off; auth_request off; @P }"),
    ("", "rewrite ^ https://new.test$request_uri? permanent; return 403;"),
    ("", "location = /a/ { @P } location / { @P }"),
    ("", "location = /a/ { @P } location /a/ { @P } location / { @P }"),
    (
        "",
        "location /a/ { proxy_pass http://@B/; } location = /h { proxy_pass http://@B/h; } location / { @P }",
    ),
    ("", "location /a/ { rewrite ^/a/(.*)$ /$1 break; @P } location / { proxy_pass http://@B/; }"),
    ("", "set $u @B; location / { @U }"),
    ("", "return 404; } server { listen @L; server_name .s.test _; location / { @P }"),
    (GEO, "location / { if ($g = \"1\" ) { return 403; } @P }"),
    ("", "location / { return 497; } location /a { return 495; } "),
    ("", "location / { @P } location /a { return 200; location /a/ { @P } } location = /h/ { @P }"),
    ("", "location = /a/ { return 204; } location /a/ { internal; @P }"),
];
