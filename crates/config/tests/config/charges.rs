//! `charge` in valid files, with the sentences about it.

use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_config as config;
use sluicegate_config::describe::{describe_limit, describe_rejection};
use sluicegate_model::*;

use super::values::{limit, read};

fn charge<'a>(config: &'a Config, name: &str) -> &'a ChargeConfig {
    limit(config, name).charge.as_ref().unwrap_or_else(|| panic!("{name} charges nothing"))
}

fn pointers(pointers: &[JsonPointer]) -> Vec<&str> {
    pointers.iter().map(JsonPointer::as_str).collect()
}

const PLAIN: ChargeConfig = ChargeConfig {
    when: None,
    clear: ResponseSet { statuses: StatusRanges(Vec::new()), grpc_codes: Vec::new() },
    units: Vec::new(),
    reserve: Reserve::Cost,
    missing: MissingUnits::Estimate,
    over: OverrunAction::Finish,
    counts_kib: false,
    pricing: None,
};

#[test]
fn responses_units_and_defaults() {
    let config = read("charge");
    let login = charge(&config, "login");
    let when = login.when.as_ref().expect("some responses");
    assert_eq!(when.statuses.0, [(401, 401), (403, 403), (500, 599)]);
    assert_eq!((&when.grpc_codes[..], &login.clear.statuses.0[..]), (&[16, 7][..], &[(200, 299)][..]));
    assert!(when.contains(401, None) && when.contains(200, Some(7)) && !when.contains(200, Some(0)));
    assert_eq!(*charge(&config, "empty"), ChargeConfig { units: vec![ChargedUnits::Request], ..PLAIN });
    assert!(limit(&config, "off").charge.is_none());
    let weighted = charge(&config, "weighted");
    let [ChargedUnits::Llm(weights), ChargedUnits::Json(cost), ChargedUnits::Header(name), last] =
        &weighted.units[..]
    else {
        panic!("{:?}", weighted.units)
    };
    assert_eq!(
        *weights,
        LlmWeights { input: 250_000, output: 4_000_000, cached: 100_000, cache_write: 250_000 }
    );
    assert_eq!((cost.segments()[1].as_str(), name.as_str()), ("images/hd", "x-cost"));
    assert_eq!((last, weighted.missing), (&ChargedUnits::Request, MissingUnits::Nothing));
    let input = LlmWeights { input: 2_000_000, output: 1_000_000, cached: 2_000_000, cache_write: 2_000_000 };
    assert_eq!(charge(&config, "defaults").units, [ChargedUnits::Llm(input)], "cached input counts as input");
    let llm = charge(&config, "llm");
    assert_eq!(llm.units, [ChargedUnits::Llm(LlmWeights::EQUAL)]);
    assert_eq!((llm.missing, llm.over), (MissingUnits::Reserved, OverrunAction::Cut));
}

#[test]
fn reserves() {
    let config = read("charge");
    let body = |name: &str| match &charge(&config, name).reserve {
        Reserve::Body(body) => body.clone(),
        other => panic!("{other:?}"),
    };
    let llm = body("llm");
    assert_eq!(pointers(&llm.from), ["/max_completion_tokens", "/max_tokens"]);
    assert_eq!((llm.bytes_per_unit, llm.default, llm.at_most), (Some(4), 2000, 250_000));
    let weighted = body("weighted");
    assert_eq!((weighted.bytes_per_unit, weighted.default, weighted.at_most), (None, 1, 1_000_000));
    let defaults = body("defaults");
    assert_eq!((defaults.default, defaults.at_most), (3, 125_000), "without a claim it reserves its cost");
    assert_eq!(charge(&config, "bytes").reserve, Reserve::Units(1000));
}

#[test]
fn sizes_count_in_kib() {
    let config = read("charge");
    let egress = limit(&config, "egress");
    assert!(egress.counts_kib() && egress.charge.as_ref().expect("a charge").reserve == Reserve::Units(64));
    let quotas = |algorithm: &Algorithm| {
        let quotas = algorithm.rate_quotas();
        quotas.iter().map(|(rate, burst)| (rate.units.get(), *burst)).collect::<Vec<_>>()
    };
    assert_eq!(quotas(&egress.algorithm), [(50 << 20, 1 << 20), (976, 976)]);
    let gold = egress.tiers[0].1.as_ref().expect("numbers");
    assert_eq!(quotas(gold), [(1 << 30, 1 << 20), (5 << 10, 5 << 10)]);
    let bytes = limit(&config, "bytes");
    assert!(!bytes.counts_kib() && quotas(&bytes.algorithm) == [(1_000_000, 1_000_000)]);
    assert_eq!(describe_rejection(egress, 0), "limit egress: 50 GiB per day, burst 1 GiB");
    assert_eq!(describe_rejection(bytes, 0), "limit bytes: 1000000 bytes per hour");
}

#[test]
fn sentences_say_what_is_charged() {
    const REJECTED: &str = "rejected with 429 and told when to return";
    let sentence = |limit: &str| {
        let text =
            format!("limits: {{ x: {limit} }}\nlocations: [{{ path: /, upstream: demo, limits: x }}]\n");
        let config = config::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config;
        describe_limit(&config, LimitId(0), None)
    };
    for (limit, expected) in [
        (
            "{ key: [ip, uri], rate: 5/10m, charge: { when: [401, 4xx, grpc:7], clear: 2xx } }",
            format!(
                "x: 5 requests per 10 minutes per client IP and URI, 5 at once; the 6th is {REJECTED}; only responses \
                 with 401, 4xx, grpc:PERMISSION_DENIED cost anything; a response with 2xx forgets what the key has used"
            ),
        ),
        (
            "{ rate: 100/m, charge: { units: llm, reserve: { from: [json:/a, json:/b], plus: json_bytes/4, \
             default: 20, at_most: 12.5% }, missing: nothing, over: cut } }",
            format!(
                "x: 100 tokens per 60 seconds per client IP, 100 at once; anything above it is {REJECTED}; each request \
                 reserves the first of /a, /b in its JSON body and 1 for each 4 bytes of it, else 20, at most 12.5% of \
                 the limit, settled by the tokens that the response reports; a response that does not say its cost is \
                 free; a response that uses more than is left is cut; the upstream is asked for bodies without \
                 compression (Accept-Encoding: identity)"
            ),
        ),
        (
            "{ rate: 50GiB/1d, burst: 1GB, charge: { units: bytes, missing: reserved } }",
            format!(
                "x: 50 GiB per day per client IP, 976562 KiB at once; anything above it is {REJECTED}; each request \
                 reserves 1 KiB, settled by the bytes of the response body; a response that does not say its cost \
                 keeps what was reserved"
            ),
        ),
        (
            "{ rate: 10/s, charge: { units: [request, header:X-Cost, { llm: { output: 4, cached: 0.1 } }], \
             reserve: 3 } }",
            format!(
                "x: 10 units per second per client IP, 10 at once; anything above it is {REJECTED}; each request reserves \
                 3, settled by its cost + the number in header x-cost of the response + the tokens that the response \
                 reports (input × 1, output × 4, cached input × 0.1); the upstream is asked for bodies without \
                 compression (Accept-Encoding: identity)"
            ),
        ),
        (
            "{ rate: 10/s, cost: 2, charge: {} }",
            format!(
                "x: 10 units per second per client IP, 10 at once; each request takes 2; the 6th is {REJECTED}"
            ),
        ),
    ] {
        assert_eq!(sentence(limit), expected);
    }
}
