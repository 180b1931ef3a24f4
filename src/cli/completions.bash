
# Jobs and signals of `wireup kill`; programs for `wireup run`, and files behind them.
_wireup_first() {
    local cur=${COMP_WORDS[COMP_CWORD]} i word program=
    COMPREPLY=()
    case ${COMP_WORDS[1]} in
    kill)
        if [[ ${COMP_WORDS[COMP_CWORD - 1]} == @(-s|--signal) ]]; then
            mapfile -t COMPREPLY < <(compgen -A signal -- "SIG${cur#SIG}")
            return
        elif [[ $cur != -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" ps 2> /dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
            return
        fi
        ;;
    stacks|core|debug|attach|wait)
        if [[ $cur != -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" ps 2> /dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
            return
        fi
        ;;
    run)
        for ((i = 2; i < COMP_CWORD; i++)); do
            word=${COMP_WORDS[i]}
            if [[ $word == : ]]; then
                program=
            elif [[ -z $program && ( $word == = || " @OPTIONS@ " == *" $word "* ) ]]; then
                [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
                ((i++))
            elif [[ $word != -* ]]; then
                program=$word
            fi
        done
        if [[ -n $program ]]; then
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            compopt -o filenames 2> /dev/null
            return
        elif ((i == COMP_CWORD)) && [[ $cur != -* ]]; then
            mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
            compopt -o filenames 2> /dev/null
            return
        fi
        ;;
    esac
    _wireup "$@"
}
complete -F _wireup_first wireup
