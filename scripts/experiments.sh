# Sourced by the scripts that run experiments. They set jobs, steps and out to their defaults (and report=false where there are runs to report on).

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
}

# read_flags ARGUMENTS...: values of --jobs, --steps and --out, and --report; what follows them is left in `rest`.
read_flags() {
  while [[ ${1-} == --* ]]; do
    case $1 in
      --jobs | --steps | --out)
        [[ -n ${2-} ]] || usage
        declare -g "${1#--}=$2"
        shift 2
        ;;
      --report)
        [[ -v report ]] || usage
        report=true
        shift
        ;;
      *) usage ;;
    esac
  done
  [[ $jobs =~ ^[1-9][0-9]*$ && $steps =~ ^([1-9][0-9]*)?$ ]] || usage
  rest=("$@")
}

require_raffia() {
  [[ -x $raffia ]] || {
    echo "$(basename "$0"): $raffia is not there: cmake --preset release && cmake --build --preset release" >&2
    exit 1
  }
}
