//! Throughput against what one client waits for.

use std::collections::BTreeMap;

use super::chart::{Guide, LineChart, Point, Series};
use super::data::{Data, Setting};
use super::html::{millis, rate};
use super::mean;
use super::plots::{Made, even, not_shown, one, shown};
use crate::percentile;

/// An arm at one concurrency.
#[derive(Clone, Copy)]
struct Place {
    concurrency: u32,
    /// Median time a token after the first, of all suites' answers.
    token_ns: f64,
    throughput: f64,
}

pub(crate) fn figure(data: &Data<'_>, settings: &[&Setting], id: &str) -> Made {
    let mut places: BTreeMap<&str, Vec<Place>> = BTreeMap::new();
    for setting in settings {
        for arm in data.arms_of(setting) {
            if let Some(place) = place(data, setting, arm) {
                places.entry(arm).or_default().push(place);
            }
        }
    }
    let n_concurrencies = settings.len();
    if n_concurrencies < 2 || places.is_empty() {
        return Err("needs two concurrencies".into());
    }
    places.retain(|_, its| its.len() > 1);
    let arms = data.arms.iter().map(String::as_str);
    let all: Vec<&str> = arms.filter(|arm| places.contains_key(arm)).collect();
    if all.is_empty() {
        return Err("no method was measured at two concurrencies".into());
    }
    let arms = shown(data, all.clone());
    let best = best(arms.iter().flat_map(|arm| &places[arm]));
    let series = arms.iter().map(|arm| Series {
        arm: (*arm).to_owned(),
        look: data.look(arm),
        points: places[arm].iter().map(|place| dot(arm, place)).collect(),
    });
    let chart = LineChart {
        title: "Throughput and waiting".into(),
        desc: format!(
            "Throughput over the median time a token, a point a concurrency, of {}; numbers are in the table below.",
            arms.join(", ")
        ),
        x: even("median ms a token of one client"),
        y: even("tokens a second, all sequences"),
        guide: Guide::Through(best),
        series: series.collect(),
    };
    let head = [
        "method",
        "sequences at once",
        "ms a token, median",
        "tokens a second",
    ];
    let rows = all.iter().flat_map(|arm| {
        let row = |place: &Place| {
            vec![
                (*arm).to_owned(),
                place.concurrency.to_string(),
                millis(place.token_ns),
                rate(place.throughput),
            ]
        };
        places[arm].iter().map(row).collect::<Vec<_>>()
    });
    let text = format!(
        "Up and to the left is better; a line goes through one method\u{2019}s concurrencies ({}), from the left. The broad line joins the points that no other beats in both.{}",
        settings
            .iter()
            .map(|s| s.concurrency.to_string())
            .collect::<Vec<_>>()
            .join(", "),
        not_shown(all.len(), arms.len())
    );
    let head = head.map(str::to_owned).to_vec();
    Ok(one(chart, id, text, head, rows.collect()))
}

fn place(data: &Data<'_>, setting: &Setting, arm: &str) -> Option<Place> {
    let throughput = mean::throughput(data.pools.get(setting)?.get(arm)?)?;
    let suites = data.suites_of(setting);
    let stats = suites
        .iter()
        .filter_map(|suite| data.stat(setting, suite, arm));
    let mut times: Vec<u64> = stats.flat_map(|s| s.latency.per_token.clone()).collect();
    times.sort_unstable();
    Some(Place {
        concurrency: setting.concurrency,
        token_ns: percentile(&times, 50.0)?,
        throughput: throughput.value,
    })
}

fn dot(arm: &str, place: &Place) -> Point {
    Point {
        x: place.token_ns / 1e6,
        y: place.throughput,
        interval: None,
        says: format!(
            "{arm}, {} at once: {} ms a token, {} tokens a second",
            place.concurrency,
            millis(place.token_ns),
            rate(place.throughput)
        ),
        label: None,
    }
}

/// Places that none beats in both, by rising time, in the chart's numbers.
fn best<'p>(places: impl Iterator<Item = &'p Place>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = places.map(|p| (p.token_ns / 1e6, p.throughput)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut highest = f64::MIN;
    points.retain(|point| {
        let is_best = point.1 > highest;
        highest = highest.max(point.1);
        is_best
    });
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_that_none_beats_in_both_are_best() {
        let place = |ms: f64, throughput| Place {
            concurrency: 1,
            token_ns: ms * 1e6,
            throughput,
        };
        let places = [
            place(2.0, 20.0),
            place(1.0, 10.0),
            place(3.0, 15.0),
            place(2.0, 19.0),
            place(4.0, 30.0),
        ];
        assert_eq!(best(places.iter()), [(1.0, 10.0), (2.0, 20.0), (4.0, 30.0)]);
    }
}
