# Writes an access log of half an hour without any limit, the same for the same seed:
#
#   awk -v seed=7 -f traffic.awk | sort > access.log
#
# 200 people load pages with their parts and read for a while; 12 integrations poll every two seconds; one customer
# transfers orders at 12 requests per second for 40 seconds; one scraper fetches 20 pages per second for five minutes.

# The minimal standard generator of Park and Miller: the same numbers in every awk.
function uniform() {
    state = (state * 48271) % 2147483647
    return state / 2147483647
}

function line(at, ip, path, ms,    seconds) {
    if (at >= 1800) return
    seconds = int(at)
    printf "{\"ts\":\"2026-03-02T10:%02d:%02d.%03dZ\",\"id\":\"%08d\",\"ip\":\"%s\",\"method\":\"GET\"," \
        "\"host\":\"shop.example\",\"path\":\"%s\",\"status\":200,\"bytes\":%d,\"dur_ms\":%.3f,\"wait_ms\":0.000," \
        "\"verdict\":\"admit\",\"location\":\"/\"}\n", \
        int(seconds / 60), seconds % 60, int((at - seconds) * 1000), ++count, ip, path, 500 + int(uniform() * 9000), ms
}

function page(at, ip,    parts) {
    line(at, ip, "/products/" int(uniform() * 500), 20 + uniform() * 60)
    for (parts = 6 + int(uniform() * 9); parts > 0; parts--)
        line(at + 0.1 + uniform() * 1.2, ip, "/assets/" int(uniform() * 40), 1 + uniform() * 4)
}

BEGIN {
    state = 1 + seed % 2147483646
    for (person = 1; person <= 200; person++) {
        at = uniform() * 1500
        for (pages = 3 + int(uniform() * 12); pages > 0; pages--) {
            page(at, "192.0.2." person)
            at += 5 - 25 * log(1 - uniform())
        }
    }
    for (poller = 1; poller <= 12; poller++)
        for (at = uniform() * 2; at < 1800; at += 1.9 + uniform() * 0.2)
            line(at, "198.51.100." poller, "/api/orders", 5 + uniform() * 20)
    for (at = 600; at < 640; at += 1 / 12)
        line(at + uniform() * 0.02, "203.0.113.50", "/api/orders", 5 + uniform() * 20)
    for (at = 900; at < 1200; at += 0.05)
        line(at + uniform() * 0.02, "203.0.113.99", "/products/" int(uniform() * 500), 20 + uniform() * 60)
}
