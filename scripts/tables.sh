# Sourced by the scripts that measure what documents show. Set `wanted` to the names of the tables to make (none: all).

raffia=build/bin/raffia

# active_isa: the instruction set that ops use here.
active_isa() { "$raffia" info --json | sed -n 's/^ *"isa": "\(.*\)",$/\1/p'; }

# is_wanted NAME: whether this table is to be made.
is_wanted() { [[ $wanted == "  " || $wanted == *" $1 "* ]]; }

# fill DOCUMENT NAME FILE: what the file holds, between the marks of that name in the document.
fill() {
  local document=$1 name=$2 found=$3 filled
  filled=$(mktemp)
  awk -v name="$name" -v found="$found" '
    $0 == "<!-- end " name " -->" { inside = 0 }
    !inside { print }
    $0 == "<!-- table " name " -->" { inside = 1; while ((getline line < found) > 0) print line }
  ' "$document" >"$filled"
  cat "$filled" >"$document"
  rm "$filled"
}

# table DOCUMENT NAME ARGUMENTS...: the command and what it prints, between the marks of that name in the document.
table() {
  local document=$1 name=$2 found
  shift 2
  is_wanted "$name" || return 0
  echo "$name: raffia $*" >&2
  found=$(mktemp)
  {
    printf '```sh\nraffia %s\n```\n\n' "$*"
    "$raffia" "$@"
  } >"$found"
  fill "$document" "$name" "$found"
  rm "$found"
}
