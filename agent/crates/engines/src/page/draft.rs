//! A page read line by line, and its series.

use super::super::ENGINES;
use super::super::exposition::{self, Line, LineError, SampleLine};
use super::super::table::{Engine, Family, Read, Version};
use super::buckets::{self, Upstream};
use super::names::{Part, Place, Types, fits, plain};
use super::series::{Notes, NumberSeries, PageSeries};
use super::totals::Totals;
use super::{MAX_LABELS, MAX_LINES, MAX_SERIES, MAX_UNKNOWN, PageError};
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::labels::{Label, LabelSet, LabelSets};
use std::collections::{HashMap, HashSet};

/// When the server began, as every client for Python says it.
const START_TIME: &str = "process_start_time_seconds";

/// A page's lines.
#[derive(Debug, Default)]
pub(super) struct Draft<'p> {
    notes: Notes,
    types: Types<'p>,
    /// Each with its line, from 0.
    samples: Vec<(usize, SampleLine<'p>)>,
    /// How many labels they have.
    labels: usize,
}

impl<'p> Draft<'p> {
    /// Reads every line.
    pub(super) fn read(page: &'p [u8]) -> Self {
        let mut draft = Self::default();
        let mut keys = HashSet::new();
        let mut is_over = false;
        let mut lines = page.split_inclusive(|byte| *byte == b'\n').enumerate();
        while let Some((at, line)) = lines.next() {
            if at >= MAX_LINES || draft.labels >= MAX_LABELS {
                let is_series = |(_, line): &(usize, &[u8])| !line.starts_with(b"#");
                draft.notes.bad(at, LineError::TooMany);
                draft.notes.left_out =
                    std::iter::once((at, line)).chain(lines).filter(is_series).count();
                break;
            }
            let read = match line.strip_suffix(b"\n") {
                None => Err(LineError::Cut),
                Some(line) => exposition::line(line),
            };
            let read = match read {
                Ok(Line::Sample(_) | Line::Type(..)) if is_over => Err(LineError::BehindEnd),
                Ok(Line::Sample(sample)) if !keys.insert(key(line, &sample)) => {
                    Err(LineError::SeriesTwice)
                }
                read => read,
            };
            is_over |= read == Ok(Line::End);
            draft.take(at, read);
        }
        draft
    }

    fn take(&mut self, at: usize, read: Result<Line<'p>, LineError>) {
        match read {
            Ok(Line::Sample(sample)) => {
                self.types.note(&sample);
                self.labels += sample.labels.len();
                self.samples.push((at, sample));
            }
            Ok(Line::Type(name, of)) => self.types.set(name, of),
            Ok(Line::Nothing | Line::End) => {}
            Err(cause) => self.notes.bad(at, cause),
        }
    }

    /// The series of its lines.
    pub(super) fn series(
        self,
        version: Option<Version>,
        sets: &mut LabelSets,
    ) -> Result<PageSeries, PageError> {
        let Self { notes, types, samples, .. } = self;
        if samples.is_empty() {
            let not = |(line, cause)| PageError::NoExposition { line, cause };
            return Err(notes.first_bad.map_or(PageError::Empty, not));
        }
        let places: Vec<_> = samples.iter().map(|(_, sample)| types.place(&sample.name)).collect();
        let present = places.iter().filter(|place| place.part != Part::Created);
        let present: HashSet<String> = present.map(|place| plain(place.family)).collect();
        let engines = engines(&present);
        let Some(engine) = engines.first() else { return Err(PageError::UnknownEngine) };
        let totals = Totals::of(&samples, &engines);
        let mut filling = Filling::new(&engines, &present, sets, notes);
        filling.page.notes.engine = engine.name;
        for ((line, sample), place) in samples.iter().zip(&places) {
            if !totals.have(sample) {
                filling.take(*line, sample, *place);
            }
        }
        filling.note_missing(engine, version);
        let Filling { mut page, upstream, .. } = filling;
        buckets::fill(upstream, &mut page);
        Ok(page)
    }
}

/// The series of a line, as it is written.
fn key<'a>(line: &'a [u8], sample: &SampleLine<'_>) -> &'a [u8] {
    line.get(..sample.value_at).unwrap_or(line).trim_ascii_end()
}

/// The engines whose families a page has.
fn engines(present: &HashSet<String>) -> Vec<&'static Engine> {
    let has_prefix = |engine: &&&Engine| present.iter().any(|family| engine.is_prefix_of(family));
    let prefixed: Vec<_> = ENGINES.iter().filter(has_prefix).copied().collect();
    if !prefixed.is_empty() {
        return prefixed;
    }
    let is_marked = |engine: &&&Engine| {
        !engine.marks.is_empty() && engine.marks.iter().all(|mark| present.contains(*mark))
    };
    ENGINES.iter().filter(is_marked).copied().collect()
}

/// The series in the making.
struct Filling<'a> {
    page: PageSeries,
    present: &'a HashSet<String>,
    engines: &'a [&'static Engine],
    families: HashMap<String, Vec<(&'static Engine, &'static Family)>>,
    sets: &'a mut LabelSets,
    numbers: HashMap<(&'static MetricDef, Option<LabelSet>), usize>,
    upstream: Vec<Upstream>,
    /// Where each histogram of the page is in `upstream`.
    places: HashMap<(*const Family, String), usize>,
    unknown: HashSet<String>,
}

impl<'a> Filling<'a> {
    fn new(
        engines: &'a [&'static Engine],
        present: &'a HashSet<String>,
        sets: &'a mut LabelSets,
        notes: Notes,
    ) -> Self {
        let mut families: HashMap<_, Vec<_>> = HashMap::new();
        for engine in engines {
            for family in engine.families {
                families.entry(plain(family.upstream)).or_default().push((*engine, family));
            }
        }
        Self {
            page: PageSeries { notes, ..PageSeries::default() },
            present,
            engines,
            families,
            sets,
            numbers: HashMap::new(),
            upstream: Vec::new(),
            places: HashMap::new(),
            unknown: HashSet::new(),
        }
    }

    fn take(&mut self, line: usize, sample: &SampleLine<'_>, place: Place<'_>) {
        if sample.name == START_TIME && sample.labels.is_empty() {
            self.page.notes.started = Some(sample.value);
        }
        if place.part == Part::Created {
            return;
        }
        let name = plain(place.family);
        let families = self.families.get(&name).cloned().unwrap_or_default();
        let mut is_known = false;
        for (engine, family) in families {
            if !fits(family.read, place.of) {
                continue;
            }
            is_known = true;
            let is_double = family.newer.is_some_and(|newer| self.present.contains(&plain(newer)));
            let is_other = family.only.is_some_and(|(label, values)| {
                sample.label(label).is_none_or(|value| !values.contains(&value))
            });
            if !is_double && !is_other {
                self.assign(line, sample, place, (engine, family));
            }
        }
        if !is_known {
            self.note_unknown(place.family, name);
        }
    }

    fn assign(
        &mut self,
        line: usize,
        sample: &SampleLine<'_>,
        place: Place<'_>,
        (engine, family): (&'static Engine, &'static Family),
    ) {
        match (family.read, place.part) {
            (Read::Histogram, _) => self.histogram(line, sample, place, (engine, family)),
            (Read::Counter | Read::Level, Part::Value) | (Read::Sum, Part::Sum) => {
                if let Some(number) = self.number(sample, engine, family) {
                    number.take(sample.value);
                }
            }
            (Read::Label(..) | Read::NewestLabel(_) | Read::NewestNames(_), Part::Value) => {
                let Some(value) = in_label(family.read, sample) else { return };
                match self.number(sample, engine, family) {
                    Some(number) if !matches!(family.read, Read::Label(..)) => {
                        number.take_newest(value, sample.value);
                    }
                    Some(number) if sample.value != 0.0 => number.take(value),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Whether one more series has room; if not, the line is counted.
    fn has_room(&mut self) -> bool {
        let has_room = self.page.numbers.len() + self.upstream.len() < MAX_SERIES;
        self.page.notes.left_out += usize::from(!has_room);
        has_room
    }

    /// The series of numbers that a series of the page is a part of; none where there is no room.
    fn number(
        &mut self,
        sample: &SampleLine<'_>,
        engine: &'static Engine,
        family: &'static Family,
    ) -> Option<&mut NumberSeries> {
        let key = (family.metric, self.labels(sample, engine, family));
        let known = self.numbers.get(&key).copied();
        let place = known.or_else(|| self.has_room().then_some(self.page.numbers.len()))?;
        if known.is_none() {
            self.page.numbers.push(NumberSeries::new(family, key.1.clone()));
            self.numbers.insert(key, place);
        }
        self.page.numbers.get_mut(place)
    }

    fn histogram(
        &mut self,
        line: usize,
        sample: &SampleLine<'_>,
        place: Place<'_>,
        (engine, family): (&'static Engine, &'static Family),
    ) {
        let others = sample.labels.iter().filter(|(name, _)| name != "le");
        let mut others: Vec<_> = others.map(|(name, value)| format!("{name}={value:?}")).collect();
        others.sort_unstable();
        let (key, new) = ((std::ptr::from_ref(family), others.join(",")), self.upstream.len());
        let at = self.places.get(&key).copied().unwrap_or(new);
        if at == new {
            if !self.has_room() {
                return;
            }
            self.places.insert(key, new);
            let labels = self.labels(sample, engine, family);
            let (buckets, sum, count) = (Vec::new(), None, None);
            self.upstream.push(Upstream { family, labels, line, buckets, sum, count });
        }
        let Some(upstream) = self.upstream.get_mut(at) else { return };
        match place.part {
            Part::Bucket => {
                let bound = sample.label("le").and_then(|le| exposition::number(le.as_bytes()));
                upstream.buckets.push((bound.unwrap_or(f64::NAN), sample.value));
            }
            Part::Sum => upstream.sum = Some(sample.value),
            Part::Count => upstream.count = Some(sample.value),
            Part::Value | Part::Created => {}
        }
    }

    /// The labels of a series that are kept, with those of its family.
    fn labels(
        &mut self,
        sample: &SampleLine<'_>,
        engine: &'static Engine,
        family: &'static Family,
    ) -> Option<LabelSet> {
        let dropped = family.only.filter(|_| family.adds_up).map(|(label, _)| label);
        let mut labels: Vec<Label<'_>> = Vec::new();
        for (name, key) in engine.labels.iter().filter(|(name, _)| Some(*name) != dropped) {
            let Some(value) = sample.label(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            if **key == attr::GEN_AI_MODEL {
                self.page.notes.note_model(value);
            }
            if !labels.iter().any(|(known, _)| known == key) {
                labels.push((key, value));
            }
        }
        for (key, value) in family.labels {
            if !labels.iter().any(|(known, _)| known == key) {
                labels.push((key, value));
            }
        }
        // Another engine than the page's: the back end of it.
        if engine.name != self.page.notes.engine {
            labels.push((&attr::ENGINE_NAME, engine.name));
        }
        (!labels.is_empty()).then(|| self.sets.intern(&labels))
    }

    fn note_unknown(&mut self, family: &str, plain: String) {
        let is_ours = self.engines.iter().any(|engine| engine.is_prefix_of(&plain));
        let is_unread = || self.engines.iter().any(|engine| engine.is_unread(&plain));
        if !is_ours || is_unread() || !self.unknown.insert(plain) {
            return;
        }
        self.page.notes.unknown_count += 1;
        if self.page.notes.unknown.len() < MAX_UNKNOWN {
            self.page.notes.unknown.push(family.into());
        }
    }

    /// What the page's engine should have, under no name that is the same.
    fn note_missing(&mut self, engine: &'static Engine, version: Option<Version>) {
        let has = |family: &Family| self.present.contains(&plain(family.upstream));
        let is_there = |metric| {
            let mut same = engine.families.iter().filter(|family| family.metric == metric);
            same.any(has)
        };
        let expected = engine.families.iter().filter(|family| family.expected);
        let missing = expected
            .filter(|family| family.is_in(version) && !has(family))
            .filter(|family| family.only.is_some() || !is_there(family.metric));
        self.page.notes.missing = missing.map(|family| family.upstream).collect();
    }
}

/// What a label of an info series says; `None` for what is no number.
fn in_label(read: Read, sample: &SampleLine<'_>) -> Option<f64> {
    match read {
        Read::Label(label, factors) => match sample.label(label) {
            Some(number) => exposition::number(number.as_bytes()),
            None => factors.into_iter().try_fold(1.0, |product, factor| {
                Some(product * exposition::number(sample.label(factor)?.as_bytes())?)
            }),
        },
        Read::NewestLabel(label) => exposition::number(sample.label(label)?.as_bytes()),
        Read::NewestNames(label) => {
            let names = sample.label(label)?.split(',');
            Some(names.filter(|name| !name.trim().is_empty()).count() as f64)
        }
        _ => None,
    }
}
