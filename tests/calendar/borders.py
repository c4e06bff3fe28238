#!/usr/bin/env python3
"""Prints windows of calendars by Python's zoneinfo: zone, unit, start, date of the account or -, moment, begin and
end, one a line."""
import calendar
import random
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

ZONES = """UTC Europe/Berlin Europe/Dublin America/New_York America/St_Johns America/Sao_Paulo America/Asuncion
America/Scoresbysund Africa/Casablanca Africa/Monrovia Asia/Kathmandu Asia/Tehran Asia/Gaza Asia/Pyongyang
Australia/Lord_Howe Antarctica/Troll Pacific/Apia Pacific/Chatham Pacific/Kwajalein""".split()
UNITS = ["hour", "day", "week", "month", "quarter", "year"]
FIRST, LAST = datetime(1971, 1, 1, tzinfo=timezone.utc), datetime(2371, 1, 1, tzinfo=timezone.utc)
ROUNDS = 40
DATES = [date(2024, 1, 31), date(2024, 2, 29), date(2023, 4, 30), date(1999, 12, 31), date(2025, 8, 31), date(2020, 6, 15)]


def day_of(year, month, day):
    """The day of a month, or the last one where the month is shorter; `month` may lie outside of the year."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def first_days(unit, start, near):
    """The first days of the windows around a day."""
    hours, weekday, month_day, (year_month, year_day) = start
    if unit == "day":
        return [near + timedelta(days=shift) for shift in range(-3, 4)]
    if unit == "week":
        days = [near + timedelta(days=shift) for shift in range(-16, 17)]
        return [day for day in days if day.weekday() == weekday]
    if unit == "month":
        return [day_of(near.year, near.month + shift, month_day) for shift in range(-3, 4)]
    step = 3 if unit == "quarter" else 12
    return [day_of(near.year - 2, year_month + shift, year_day) for shift in range(0, 61, step)]


def hour_at(zone, at):
    """From a full local hour or a change of the offset to the next of both."""
    def offset(moment):
        return datetime.fromtimestamp(moment, zone).utcoffset().total_seconds()

    def is_border(moment):
        return (moment + offset(moment)) % 3600 == 0 or offset(moment) != offset(moment - 1)

    def nearest(moment, step):
        # Only where the offset changes within the hour are its seconds of interest.
        past = (moment + offset(moment)) % 3600
        full = moment - past if step < 0 else moment + -past % 3600
        if offset(full) == offset(full - 1) == offset(moment):
            return full
        while not is_border(moment):
            moment += step
        return moment

    return nearest(at, -1), nearest(at + 1, 1)


def window_at(zone, unit, start, at):
    if unit == "hour":
        return hour_at(zone, at)
    near = datetime.fromtimestamp(at, zone).date()
    begin = time(*start[0])
    days = first_days(unit, start, near)
    borders = sorted(int(datetime.combine(day, begin, tzinfo=zone).timestamp()) for day in days)
    return max(one for one in borders if one <= at), min(one for one in borders if one > at)


def main():
    chance = random.Random(33)
    for name in ZONES:
        zone = ZoneInfo(name)
        span = int(LAST.timestamp() - FIRST.timestamp())
        moments = [int(FIRST.timestamp()) + chance.randrange(span) for _ in range(ROUNDS)]
        # Most changes of offsets and the special days lie in these years.
        recent = int(datetime(2040, 1, 1, tzinfo=timezone.utc).timestamp())
        moments += [chance.randrange(int(FIRST.timestamp()), recent) for _ in range(3 * ROUNDS)]
        changes = []
        for at in range(int(FIRST.timestamp()), recent, 86400):
            if datetime.fromtimestamp(at, zone).utcoffset() != datetime.fromtimestamp(at - 86400, zone).utcoffset():
                changes.append(at)
        moments += [at - chance.randrange(2 * 86400) for at in changes]
        for at in moments:
            unit = chance.choice(UNITS)
            time_of_day = chance.choice([(0, 0), (0, 0), (2, 30), (1, 30), (23, 59), (6, 0)])
            year = chance.choice([(1, 1), (2, 29), (4, 6), (11, 30), (12, 31)])
            start = (time_of_day, chance.randrange(7), chance.choice([1, 15, 29, 30, 31]), year)
            shown = "%02d:%02d %d %d %02d-%02d" % (*start[0], start[1], start[2], *start[3])
            own = chance.choice(DATES)
            of_account = (time_of_day, own.weekday(), own.day, (own.month, own.day))
            for anchor, start in [("-", start), (own, of_account)]:
                begins, ends = window_at(zone, unit, start, at)
                print(name, unit, shown, anchor, at, int(begins), int(ends))


main()
